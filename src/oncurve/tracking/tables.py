"""The table of completions, from the groups of a step."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice

from torch import Tensor

from oncurve.base.output import visible
from oncurve.tracking.protocol import CompletionRow
from oncurve.types import Group


def completion_rows(
    groups: Sequence[Group], advantages: Sequence[Tensor | None], most: int
) -> tuple[CompletionRow, ...]:
    """The completions of the first groups, at most `most`; `advantages[g]` is `(n, T)`, or None."""
    rows = (
        _row(group, index, advantage)
        for group, advantage in zip(groups, advantages, strict=True)
        for index in range(len(group.completions))
    )
    return tuple(islice(rows, most))


def _row(group: Group, index: int, advantages: Tensor | None) -> CompletionRow:
    completion = group.completions[index]
    score = group.scores[index] if group.scores else None
    valid = score is not None and score.valid
    last = len(completion.ids) - 1
    return CompletionRow(
        group.prompt.text,
        completion.text,
        score.reward if score is not None and valid else None,
        float(advantages[index, last]) if advantages is not None and valid and last >= 0 else None,
        " ".join(f"{name}={value:g}" for name, value in (score.parts if score else {}).items() if value is not None),
        len(completion.ids),
        completion.ended,
    )


def as_markdown(rows: Sequence[CompletionRow]) -> str:
    """The rows as a table in Markdown, whose cells show texts as they are: no markup, a line break as `⏎`."""
    lines = ["| " + " | ".join(CompletionRow._fields) + " |", "|" + "---|" * len(CompletionRow._fields)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    text = visible(value).replace("\n", "⏎")
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~" else letter for letter in text)


def lacking_library(name: str) -> str | None:
    """The sentence that a library is not installed; None: it is."""
    return None if find_spec(name) is not None else f"{name} is not installed: pip install 'oncurve[{name}]'"
