"""One output of a notebook's cell that is updated in place. IPython is looked for, and never imported elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, whose cells show HTML; an IPython terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Cell:
    """An output of the running cell. `show` makes it, and replaces what it shows from then on."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, text: str) -> None:
        """Show `html`; `text` stands for it where HTML cannot be shown. A front end that is gone is no error."""
        from IPython.display import display

        shown = {"text/html": html, "text/plain": text}
        with suppress(Exception):
            if self._handle is None:
                self._handle = display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)
