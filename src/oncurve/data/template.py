"""Templates over columns: `"{question}\\nAnswer:"`. A name in braces is a column, `{{` and `}}` are braces, no more.

`str.format` is not used to fill them in, because it would read attributes and items of the values.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any


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
