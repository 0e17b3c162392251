"""verl's command line and YAML files, read and translated into settings of oncurve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.verl.reading import ABOUT, DIALECT, VerlReading, read, train_verl

__getattr__, __all__ = lazily(__name__)
