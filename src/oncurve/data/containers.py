"""Rows from any container: a list, columns, a DataFrame, a Hugging Face Dataset, an iterator.

    [{"prompt": "2+2=", "answer": "4"}]      {"prompt": ["2+2="], "answer": ["4"]}      DataFrame(...)      Dataset

are the same rows, and train the same run. Containers of other packages are recognized by their methods, or by a module
that is imported already; this module imports none of them.

Covered: NumPy values in cells become Python's, missing cells of a DataFrame become None. Not covered: files.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from oncurve.base.errors import DataError

ITERATOR_LIMIT = 1_000_000
"""An iterator with more rows than this is taken for endless."""

SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval"})

DEEPEST = 50
"""Levels of lists and mappings in a row."""

EXPECTED = (
    "expected rows: a list of mappings or prompts, a Dataset, a DataFrame, columns {'prompt': [...]}, or an iterator"
)


def as_rows(data: Any, limit: int | None = None) -> tuple[Any, ...]:
    """Return the rows of `data`, in order: mappings of columns to plain values, or prompts alone.

    An iterator is read once: `limit` rows of it, or to its end without a limit.

    Raises DataError: no container of rows (a string, a set, a single row, splits), columns that differ in length, rows
    of mixed types, names of columns that are not strings, an iterator that does not end.
    """
    rows = tuple(_plain(row) for row in _rows(data, limit))
    _check_types(rows)
    return rows


def _rows(data: Any, limit: int | None) -> Iterable[Any]:
    """Return the rows of a container, with unchanged values."""
    if isinstance(data, (str, bytes, bytearray)) or hasattr(data, "read"):
        raise DataError(f"data: {EXPECTED}, got {_kind(data)}; for a file give its path")
    if isinstance(data, (set, frozenset)):
        raise DataError(f"data: {EXPECTED}, got a set, which has no order; sort it into a list")
    if isinstance(data, Mapping):
        return _rows_of_columns(data)
    if _is_a("pandas", "DataFrame", data):
        return _rows_of_frame(data)
    if _is_a("datasets", "Dataset", data) or _is_a("datasets", "IterableDataset", data):
        return _up_to(iter(_without_format(data)), limit, endless=not hasattr(data, "__len__"))
    for method in ("to_dicts", "to_pylist"):  # polars, Arrow
        if callable(getattr(data, method, None)):
            listed: list[Any] = getattr(data, method)()
            return listed
    if isinstance(data, Tensor) or _is_a("numpy", "ndarray", data):
        if data.ndim == 0:
            raise DataError(f"data: {EXPECTED}, got a single number")
        return list(data)
    try:
        rows = iter(data) if hasattr(data, "__iter__") else map(data.__getitem__, range(len(data)))
    except (TypeError, AttributeError):
        raise DataError(f"data: {EXPECTED}, got {_kind(data)}") from None
    return _up_to(rows, limit, endless=not hasattr(data, "__len__"))


def _is_a(package: str, name: str, value: Any) -> bool:
    """Return whether `value` is an instance of a package's class; False where the package is not imported."""
    cls = getattr(sys.modules.get(package), name, None)
    return isinstance(cls, type) and isinstance(value, cls)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{name} {value!r:.40}" if isinstance(value, (str, bytes, int, float)) else name


def _up_to(rows: Iterator[Any], limit: int | None, endless: bool) -> list[Any]:
    """Return the rows of an iterator; of one without a length, `limit` at most. Raises DataError where it does not
    end.
    """
    if not endless:
        return list(rows)
    read = list(islice(rows, ITERATOR_LIMIT + 1 if limit is None else limit))
    if len(read) > ITERATOR_LIMIT and limit is None:
        raise DataError(
            f"data: the iterator goes on after {ITERATOR_LIMIT:,} rows and may be endless; say how many to read, "
            "with data.limit (and no data.eval_fraction), or give itertools.islice(rows, count)"
        )
    return read


def _rows_of_columns(data: Mapping[Any, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the rows of `{"column": [value of each row]}`."""
    names = list(data)
    if not names:
        return []
    if all(hasattr(part, "column_names") for part in data.values()) or _looks_like_splits(data):
        raise DataError(f"data: these are the splits {', '.join(map(str, names))}; pass one, like data[{names[0]!r}]")
    _check_names(names, "data")
    columns = {name: _column(name, values) for name, values in data.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"data: the columns differ in length: {listed}")
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _looks_like_splits(data: Mapping[Any, Any]) -> bool:
    """Return whether a mapping holds splits, each a container of rows, instead of columns."""
    if all(_is_a("pandas", "DataFrame", part) or hasattr(part, "to_dicts") for part in data.values()):
        return True
    listed = all(isinstance(part, (list, tuple)) and part for part in data.values()) and set(map(str, data)) <= SPLITS
    return listed and all(isinstance(row, Mapping) for part in data.values() for row in part)


def _column(name: str, values: Any) -> list[Any]:
    """Return the cells of a column. Raises DataError for a single value."""
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(values, Iterable):
        raise DataError(
            f"data: column {name!r} is {_kind(values)}, not a list of values; a single row is given in a list, "
            "data=[row], and settings of the section [data] as settings={'data': {...}}"
        )
    if getattr(values, "ndim", 1) == 0:
        raise DataError(f"data: column {name!r} is a single number, not a list of values")
    return _up_to(iter(values), None, endless=not hasattr(values, "__len__"))


def _rows_of_frame(frame: Any) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a pandas DataFrame, missing cells as None, without its index."""
    names = list(frame.columns)
    _check_names(names, "data: the DataFrame")
    if len(set(names)) < len(names):
        raise DataError(f"data: the DataFrame has a column twice: {', '.join(names)}")
    rows: list[Mapping[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def _without_format(data: Any) -> Any:
    """Return the Hugging Face data set with Python's values, whatever its format; a user's transform stays."""
    formatted = getattr(data, "format", None)
    kind = formatted.get("type") if isinstance(formatted, Mapping) else None
    return data if kind in (None, "custom", "python") else data.with_format(None)


def _check_names(names: Sequence[Any], what: str) -> None:
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise DataError(f"{what}: column {odd[0]!r}: column names must be strings")


def _check_types(rows: Sequence[Any]) -> None:
    """Raises DataError where some rows are mappings and others not, or prompts are of different types."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        kind = (
            "mapping" if isinstance(row, Mapping) else "list" if isinstance(row, (list, tuple)) else type(row).__name__
        )
        first.setdefault(kind, number)
        if isinstance(row, Mapping):
            _check_names(list(row), f"data row {number}")
    if len(first) > 1:
        listed = ", ".join(f"row {number} is a {kind}" for kind, number in first.items())
        raise DataError(f"data: the rows are of mixed types: {listed}; make them all mappings, or all prompts")


def _plain(value: Any, depth: int = 0) -> Any:
    """Return `value` with the arrays, tensors and scalars of other packages as Python's lists and numbers.

    Values nested deeper than a row allows are unchanged; the check of the rows refuses them.
    """
    if depth > DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_plain(inner, depth + 1) for inner in value)
    if isinstance(value, Tensor):
        return value.tolist()
    if _is_a("numpy", "ndarray", value):
        return _plain(value.tolist(), depth + 1)
    if _is_a("numpy", "datetime64", value) or _is_a("numpy", "timedelta64", value):
        return str(value)
    return value.item() if _is_a("numpy", "generic", value) else value
