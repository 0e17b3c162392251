"""A run in a notebook's cell: a bar, a small table and a curve of each of the numbers that matter.

The colours are those of the page around it, light or dark. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape

from oncurve.base.output import visible
from oncurve.display.text import piece_means
from oncurve.metrics import share, short

FIELDS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("completions/length", "length", partial(short, zeros=True)),
    ("turns/mean", "turns", partial(short, zeros=True)),
    ("policy/kl", "KL", partial(short, zeros=True)),
    ("policy/entropy", "entropy", partial(short, zeros=True)),
    ("groups/constant", "constant groups", share),
    ("tokens/per_second", "tokens/s", short),
    ("completions/truncated", "cut off", share),
    ("tools/errors", "tool errors", short),
    ("completions/invalid", "invalid", short),
    ("optim/updates_skipped", "updates skipped", short),
)
"""What a step shows after the reward: a metric, its label, how its value is written."""

TROUBLE = frozenset({"completions/truncated", "tools/errors", "completions/invalid", "optim/updates_skipped"})
"""Those that are shown only above 0."""

_FIRST: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("reward/mean", "reward", partial(short, zeros=True)),
    ("eval/accuracy", "accuracy, held out", share),
)
_WIDE, _HIGH = 150, 22
_CELL = "padding:.1em .9em .1em 0;text-align:left;border:0;background:none"
_NUMBER = _CELL + ";font-variant-numeric:tabular-nums"


def run_card(title: str, metrics: Sequence[Mapping[str, float]], lines: Iterable[str] = (), done: float = 1.0) -> str:
    """Return the HTML of a run: `title`, a bar that is filled by the share `done`, a row for each number, `lines`
    below.

    metrics    one mapping per step; without one there is no table
    """
    rows = [row for key, label, words in (*_FIRST, *FIELDS) if (row := _row(key, label, words, metrics))]
    heads = ("", "first", "last", "") if len(metrics) > 1 else ("", "last", "")
    head = "".join(f'<th style="{_CELL};opacity:.6;font-weight:400">{name}</th>' for name in heads)
    table = f'<table style="border-collapse:collapse;margin:.4em 0;border:0"><tr>{head}</tr>{"".join(rows)}</table>'
    below = "".join(f'<div style="opacity:.75;white-space:pre-wrap">{_text(line)}</div>' for line in lines)
    bar = (
        '<div style="height:4px;max-width:30em;background:rgba(128,128,128,.25);border-radius:2px;margin:.3em 0">'
        f'<div style="height:4px;width:{100 * min(1.0, max(0.0, done)):.1f}%;background:#3b82c4;border-radius:2px">'
        "</div></div>"
    )
    return (
        f'<div style="font-size:.95em;line-height:1.5"><div><b>{_text(title)}</b></div>'
        f"{bar if done < 1 else ''}{table if rows else ''}{below}</div>"
    )


def _row(key: str, label: str, words: Callable[[float], str], metrics: Sequence[Mapping[str, float]]) -> str:
    """Return the row of one number: its first and last value and its curve; empty where no step has it."""
    values = [line[key] for line in metrics if key in line and math.isfinite(line[key])]
    if not values or (key in TROUBLE and not any(values)):
        return ""
    shown = [words(values[0]), words(values[-1])] if len(metrics) > 1 else [words(values[-1])]
    cells = "".join(f'<td style="{_NUMBER}">{_text(value)}</td>' for value in shown)
    return f'<tr><td style="{_CELL}">{_text(label)}</td>{cells}<td style="{_CELL}">{curve(values)}</td></tr>'


def curve(values: Sequence[float]) -> str:
    """Return an SVG of the values, each point the mean of a piece where there are many; empty for fewer than two."""
    means = piece_means(values, _WIDE // 2)
    if len(means) < 2:
        return ""
    low, high = min(means), max(means)
    scale = (_HIGH - 4) / (high - low) if high > low else 0.0
    points = " ".join(
        f"{2 + index * (_WIDE - 4) / (len(means) - 1):.1f},{_HIGH - 2 - (mean - low) * scale:.1f}"
        for index, mean in enumerate(means)
    )
    return (
        f'<svg width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}" style="display:block">'
        f'<polyline fill="none" stroke="#3b82c4" stroke-width="1.5" stroke-linejoin="round" points="{points}"/></svg>'
    )


def _text(text: str) -> str:
    return escape(visible(text))
