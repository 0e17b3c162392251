"""The words of a program's call in a shell script. The script is read, and nothing in it is executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.shell.script import SCRIPTS as SCRIPTS, Program as Program, find_call as find_call
    from oncurve.compat.shell.values import Word as Word

__getattr__, __all__ = lazily(__name__)
