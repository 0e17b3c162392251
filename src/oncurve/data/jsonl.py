"""JSON Lines or one JSON array, read whole, with an error that names file, line and column."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from array import array
from collections.abc import Iterable
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
