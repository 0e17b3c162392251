"""One data file of any format, read whole, with an error that names file, line and column.

The suffix says which format it is in, that before `.gz` of a compressed one. A CSV cell is the text that stands in it,
`007` too: no type is guessed. Of parquet, dates and decimals become text, and numbers that are not finite become None.
A file with another suffix is read as JSON: one object per line, or an array.
"""

import csv
import datetime
import decimal
import gzip
import io
import json
import math
import shlex
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from oncurve.base.errors import DataError, suggest
from oncurve.base.paths import not_a_file
from oncurve.data.settings import Rows

MOST_EXPANDED, ALWAYS_ALLOWED = 100, 64 << 20
"""How many times its size a `.gz` may expand to, and the bytes that any may: text gives about 4, zeros 1000."""

SHAPES = "a file has one object a line, or is one array of objects"


def read_jsonl(file: Path, key: str = "data.path") -> Rows:
    """Return the rows of a file of JSON: one object per line, or one array of objects. Blank lines and a BOM are
    skipped.

    `key` is the setting that named the file. Raises DataError: no such file, a directory, a pipe or a device, not
    readable, not UTF-8, not JSON, not an object, a column twice.
    """
    whole = content(file, key).removeprefix(b"\xef\xbb\xbf")
    if whole[:1000].lstrip().startswith(b"["):
        listed = _value(whole, None, str(file))
        wrong = next((n for n, row in enumerate(listed, start=1) if not isinstance(row, dict)), None)
        if wrong is not None:
            raise DataError(f'{file} row {wrong}: expected an object like {{"prompt": ...}}, {SHAPES}')
        return Rows(listed, range(1, len(listed) + 1), lambda number: f"{file} row {number}")
    rows: list[dict[str, Any]] = []
    lines = array("q")
    for number, line in enumerate(whole.split(b"\n"), start=1):
        if line.strip():
            rows.append(_row(line, number, str(file)))
            lines.append(number)
    return Rows(rows, lines, lambda number: f"{file} line {number}")


def suffix_of(file: Path) -> str:
    """Return the suffix that says which format a file has, in lower case; the one before `.gz` where it ends in that.

    Example: `suffix_of(Path("rows.CSV.gz"))` is ".csv".
    """
    suffix = file.suffix.lower()
    return Path(file.stem).suffix.lower() if suffix == ".gz" else suffix


def content(file: Path, key: str) -> bytes:
    """Return the bytes of a data file, those of a `.gz` unpacked.

    Raises DataError: no such file, a directory, a pipe or a device, not readable; gzip that is none, ends early, or
    expands to more than `MOST_EXPANDED` times its size.
    """
    if file.is_dir():
        inside = ", ".join(sorted(entry.name for entry in file.glob("*.json*"))[:8]) or "no .jsonl file"
        raise DataError(f"{key}: {file} is a directory; name one file (it has: {inside})")
    special = not_a_file(file)
    if special is not None:
        raise DataError(f"{key}: {file} is {special}, which cannot be read a second time; write the rows to a file")
    try:
        return _unpacked(file, key) if file.suffix.lower() == ".gz" else file.read_bytes()
    except FileNotFoundError:
        near = suggest(file.name, [entry.name for entry in file.parent.glob("*")]) if file.parent.is_dir() else ""
        raise DataError(f"{key}: there is no file {file}{near}") from None
    except OSError as error:
        raise DataError(f"{key}: {file} cannot be read: {error.strerror}") from error


def _unpacked(file: Path, key: str) -> bytes:
    most = max(MOST_EXPANDED * file.stat().st_size, ALWAYS_ALLOWED)
    try:
        with gzip.open(file) as opened:
            found = opened.read(most + 1)
    except EOFError:
        raise DataError(f"{key}: {file} ends early: it was not copied or downloaded whole; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{key}: {file} is damaged, or not compressed by gzip: {error}; write it again") from None
    if len(found) > most:
        unpack = shlex.join(["gunzip", "-k", str(file)])
        raise DataError(
            f"{key}: {file} expands to more than {MOST_EXPANDED} times its size, which rows of text do not; if it is "
            f"meant, unpack it and name the file that is written: {unpack}"
        )
    return found


def _row(line: bytes, number: int, name: str) -> dict[str, Any]:
    place = f"{name} line {number}"
    row = _value(line, number, name)
    if isinstance(row, list):
        raise DataError(f"{place}: expected an object, one a line, got a JSON array; {SHAPES}")
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object like {{"prompt": ...}}, got {line.decode().strip()[:40]}')
    return row


def _value(text: bytes, number: int | None, name: str) -> Any:
    """Return the value of the JSON text in line `number` of the file `name`, or in all of it (None)."""
    place = name if number is None else f"{name} line {number}"
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}, byte {error.start + 1}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        if number is None:
            raise DataError(
                f"{name} line {error.lineno}, column {error.colno}: not JSON: {error.msg}; {SHAPES}"
            ) from None
        cut = error.pos >= len(text.decode().rstrip())
        hint = " (the line ends inside it: an object must be on one line)" if cut else ""
        raise DataError(f"{place}, column {error.colno}: not JSON: {error.msg}{hint}") from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that occurs a second time; None: all differ."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = first_twice(name for name, _ in pairs)
    if twice is not None:
        raise ValueError(f"column {twice!r} occurs twice in one object")
    return dict(pairs)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; write null, or leave the column out")


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
                    more = f"put a text with {delimiter!r} in it into quotation marks"
                    raise DataError(
                        f"{file} line {lines.line_num}: the header has {len(names)} cells ({', '.join(names)}), and "
                        f"this line {len(cells)}; {more if len(cells) > len(names) else 'add what is missing'}"
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
