"""One data file of any format, read whole: the suffix says which one it is in, that before `.gz` of a compressed one.

A CSV cell is the text that stands in it, `007` too: no type is guessed. Of parquet, dates and decimals become text, and
numbers that are not finite become None. A file with another suffix is read as JSON: one object per line, or an array.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.base.errors import DataError
from oncurve.data.jsonl import content, first_twice, read_jsonl, suffix_of
from oncurve.data.settings import Rows

LONGEST_CELL = 2**31 - 1
OTHER_FORMATS = (".arrow", ".zst", ".zip", ".xlsx")
UNPACK = {".zst": ("zstd", "-d"), ".zip": ("unzip",)}


def read_file(file: Path, key: str = "data.path") -> Rows:
    """Return the rows of `file`; `key` is the setting that named it.

    Raises DataError, with the place in the file: it is missing, or no file of its format, or has no rows.
    """
    suffix = suffix_of(file)
    if suffix in OTHER_FORMATS:
        unpack = f", or unpack it: {shlex.join([*UNPACK[suffix], str(file)])}" if suffix in UNPACK else ""
        raise DataError(f"{key}: {file.name}: a file of rows is JSONL, parquet or CSV; write it as one of them{unpack}")
    found = FORMATS.get(suffix, read_jsonl)(file, key)
    if not found.items:
        raise DataError(f"{file} has no rows; {key} needs a file with at least one")
    return found


def _separated(file: Path, key: str, delimiter: str) -> Rows:
    """Return the rows of a table with a header. Raises DataError: not UTF-8, no header, a row of another length."""
    try:
        text = content(file, key).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, byte {error.start + 1}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
    csv.field_size_limit(LONGEST_CELL)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, numbers = list[dict[str, Any]](), list[int]()
    names: list[str] | None = None
    try:
        for cells in lines:
            if names is None:
                names = _header(cells, file, delimiter)
            elif cells:
                if len(cells) != len(names):
                    raise DataError(
                        f"{file} line {lines.line_num}: {len(cells)} cells, and the header has {len(names)} "
                        f"({', '.join(names)}); put a text with {delimiter!r} in it into quotation marks"
                    )
                rows.append(dict(zip(names, cells, strict=True)))
                numbers.append(lines.line_num)
    except csv.Error as error:
        raise DataError(f"{file} line {lines.line_num}: not CSV: {error}") from None
    return Rows(rows, numbers, lambda number: f"{file} line {number}")


def _header(cells: Sequence[str], file: Path, delimiter: str) -> list[str]:
    other = next((mark for mark in ",;\t|" if len(cells) == 1 and mark != delimiter and mark in cells[0]), None)
    if other is not None:
        code = f"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter={other!r}))"
        source, target = (shlex.quote(str(path)) for path in (file, file.with_name(f"{file.stem}-commas.csv")))
        raise DataError(
            f"{file} line 1: the cells are separated by {other!r}, not by {delimiter!r}; this writes a file with "
            f"commas: python3 -c {shlex.quote(code)} < {source} > {target}"
        )
    twice = first_twice(cells)
    if twice is not None or "" in cells:
        problem = "a column without a name" if "" in cells else f"column {twice!r} occurs twice"
        raise DataError(f"{file} line 1: {problem}; the first line of a CSV file names the columns")
    return list(cells)


def _parquet(file: Path, key: str) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(pyarrow.BufferReader(content(file, key)))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is no parquet file that can be read: {str(error).splitlines()[0]}") from None
    twice = first_twice(table.column_names)
    if twice is not None:
        raise DataError(f"{file}: column {twice!r} occurs twice")
    rows = [{name: plain_cell(value, name, file) for name, value in row.items()} for row in table.to_pylist()]
    return Rows(rows, range(1, len(rows) + 1), lambda number: f"{file} row {number}")


def plain_cell(value: Any, column: str, name: Path | str) -> Any:
    """Return a cell as JSON could hold it. Raises DataError for bytes that are no text."""
    if isinstance(value, list | tuple):
        return [plain_cell(item, column, name) for item in value]
    if isinstance(value, Mapping):
        return {key: plain_cell(inner, column, name) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise DataError(
                f"{name}: column {column!r} holds bytes that are no text, which neither a prompt nor a reward can use; "
                "write the file without it"
            ) from None
    return value


FORMATS: dict[str, Callable[[Path, str], Rows]] = {
    ".jsonl": read_jsonl,
    ".parquet": _parquet,
    ".csv": partial(_separated, delimiter=","),
    ".tsv": partial(_separated, delimiter="\t"),
}
"""The reader of each format, by suffix. A folder's files are those with one of these."""
