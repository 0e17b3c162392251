"""A run in a notebook's cell: a bar, a small table and a curve of each of the numbers that matter.

The colours are those of the page around it, light or dark. Every text is escaped.

One output of a notebook's cell that is updated in place. IPython is looked for, and never imported elsewhere.
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.display.screen import piece_means
from oncurve.metrics import share, short
from oncurve.report import rendered


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


Field = tuple[str, str, Callable[[float], str]]
"""A metric, its label, how its value is written."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FORMS: dict[str, Callable[[float], str]] = {"share": share, "short": short, "number": partial(short, zeros=True)}
_FIRST, FIELDS = (
    [(row["metric"], row["label"], _FORMS[row["form"]]) for row in _TABLES[name]] for name in ("first", "fields")
)
TROUBLE = frozenset(row["metric"] for row in _TABLES["fields"] if row.get("trouble"))
_WIDE, _HIGH = 150, 22


def run_card(title: str, metrics: Sequence[Mapping[str, float]], lines: Iterable[str] = (), done: float = 1.0) -> str:
    """Return the HTML of a run: `title`, a bar that is filled by the share `done`, a row for each number, `lines`
    below.

    metrics    one mapping per step; without one there is no table
    """
    rows = [row for field in (*_FIRST, *FIELDS) if (row := _row(*field, metrics)) is not None]
    heads = ("", "first", "last", "") if len(metrics) > 1 else ("", "last", "")
    share_done = min(1.0, max(0.0, done))
    shown = {"rows": rows, "heads": heads, "lines": list(lines), "wide": _WIDE, "high": _HIGH}
    return rendered("card.html.j2", title=title, done=share_done, **shown)


def _row(
    key: str, label: str, words: Callable[[float], str], metrics: Sequence[Mapping[str, float]]
) -> tuple[str, list[str], str] | None:
    """Return label, first and last value, and curve of one number; None where no step has it."""
    values = [line[key] for line in metrics if key in line and math.isfinite(line[key])]
    if not values or (key in TROUBLE and not any(values)):
        return None
    ends = (values[0], values[-1]) if len(metrics) > 1 else values[-1:]
    return label, list(map(words, ends)), curve(values)


def curve(values: Sequence[float]) -> str:
    """Return the points of an SVG's polyline, each the mean of a piece where there are many; empty for fewer than two
    values.
    """
    means = piece_means(values, _WIDE // 2)
    if len(means) < 2:
        return ""
    low, high = min(means), max(means)
    scale = (_HIGH - 4) / (high - low) if high > low else 0.0
    return " ".join(
        f"{2 + index * (_WIDE - 4) / (len(means) - 1):.1f},{_HIGH - 2 - (mean - low) * scale:.1f}"
        for index, mean in enumerate(means)
    )
