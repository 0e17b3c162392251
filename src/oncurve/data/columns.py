"""The columns of rows: renamed by `data.columns`, filled into templates, and the answer where other tools keep it.

Rows of verl keep it in `reward_model`, `{"prompt": [...], "data_source": "openai/gsm8k", "reward_model": {"style":
"rule", "ground_truth": "72"}, "extra_info": {...}}`, and rows for TRL's rewards in `ground_truth` or `solution`. All of
them get a column `answer`, by which rewards of oncurve find it, next to the columns that they have.

A template is `"{question}\\nAnswer:"`: a name in braces is a column, `{{` and `}}` are braces, no more. `str.format` is
not used to fill them in, because it would read attributes and items of the values.
"""

import string
from collections.abc import Mapping
from typing import Any

from oncurve.base.errors import DataError, suggest

ANSWER = "answer"
ANSWERS = ("reward_model.ground_truth", "ground_truth", "solution")
"""Where the answer is looked for in a row without a column `answer`, in this order."""

MISSING: Any = object()
"""What `value_at` gives for a column that a row does not have."""


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or of a part of one: `reward_model.ground_truth`. `MISSING` where there is none."""
    if column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    inner = row.get(first)
    return value_at(inner, rest) if dot and isinstance(inner, Mapping) else MISSING


def renamed(row: Mapping[str, Any], columns: Mapping[str, str], place: str) -> Mapping[str, Any]:
    """Return the row with the columns `{name: its column, ...}`; a column that got a new name has the old one no
    longer.

    Raises DataError, beginning with `place`: the row lacks one of them, or has a column of the new name.
    """
    found = {name: value_at(row, column) for name, column in columns.items()}
    for name, column in columns.items():
        if found[name] is MISSING:
            has = ", ".join(map(str, row)) or "no columns"
            raise DataError(f"{place}: column {column!r} (data.columns) is missing; it has {has}{suggest(column, row)}")
        if name in row and name not in columns.values():
            raise DataError(
                f"{place}: data.columns makes {column!r} the column {name!r}, and there is one of that name; give that "
                f"one another name too, like {name}_before = {name!r}"
            )
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    return {**kept, **found}


def with_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with a column `answer`, where it holds one under the name of another tool."""
    found = (value for column in ANSWERS if isinstance(value := value_at(row, column), str | int | float))
    return row if ANSWER in row or (answer := next(found, None)) is None else {**row, ANSWER: answer}


def template_columns(template: str) -> tuple[str, ...]:
    """Return the columns a template names, in order; none of an empty one, after which an environment asks.

    Raises ValueError: no column, a brace alone, `!r` or `:spec`.
    """
    columns = tuple(name for _, name in _pieces(template) if name is not None)
    if not columns and template:
        raise ValueError("a template must name a column in braces, like '{question}'")
    return columns


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Return the template with each `{column}` replaced by `str` of the row's value. Raises KeyError on a missing
    column.
    """
    return "".join(literal + ("" if name is None else str(row[name])) for literal, name in _pieces(template))


def _pieces(template: str) -> list[tuple[str, str | None]]:
    fix = "write {column} for a column, and {{ or }} for a brace"
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; {fix}") from None
    for _, name, spec, conversion in parsed:
        if name is not None and (not name or spec or conversion):
            raise ValueError(f"only a column's name may stand in braces; {fix}")
    return [(literal, name) for literal, name, _, _ in parsed]
