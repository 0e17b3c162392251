"""JSON Lines, read whole, with an error that names file, line and column."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any, NoReturn

from oncurve.errors import DataError, suggest
from oncurve.paths import not_a_file

OTHER_FORMATS = {".csv", ".tsv", ".parquet", ".arrow", ".gz", ".zst", ".zip", ".xlsx"}


def read_jsonl(file: Path, key: str = "data.path") -> tuple[list[dict[str, Any]], array[int]]:
    """The rows of a JSONL file and the line (from 1) of each. Blank lines and a BOM are skipped.

    `key` is the setting that named the file. Raises DataError: no such file, a directory, a pipe or a device, not
    readable, another format, not UTF-8, not JSON, not an object, a column twice, no rows.
    """
    if file.suffix.lower() in OTHER_FORMATS and file.is_file():
        raise DataError(f"{key}: {file.name} is not JSONL; write one JSON object a line, UTF-8, and name it .jsonl")
    rows: list[dict[str, Any]] = []
    lines = array("q")
    for number, line in enumerate(content(file, key).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            rows.append(_row(line, f"{file} line {number}"))
            lines.append(number)
    if not rows:
        raise DataError(f"{file} has no rows; {key} needs a file with one JSON object a line")
    return rows, lines


def content(file: Path, key: str) -> bytes:
    """The bytes of a data file. Raises DataError: no such file, a directory, a pipe or a device, not readable."""
    if file.is_dir():
        inside = ", ".join(sorted(entry.name for entry in file.glob("*.json*"))[:8]) or "no .jsonl file"
        raise DataError(f"{key}: {file} is a directory; name one file (it has: {inside})")
    special = not_a_file(file)
    if special is not None:
        raise DataError(f"{key}: {file} is {special}, which cannot be read a second time; write the rows to a file")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        near = suggest(file.name, [entry.name for entry in file.parent.glob("*")]) if file.parent.is_dir() else ""
        raise DataError(f"{key}: there is no file {file}{near}") from None
    except OSError as error:
        raise DataError(f"{key}: {file} cannot be read: {error.strerror}") from error


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}, byte {error.start + 1}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None
    if text.startswith("["):
        raise DataError(f'{place}: expected an object like {{"prompt": ...}}, one a line, got a JSON array')
    try:
        row = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        cut = " (the line ends inside it: an object must be on one line)" if error.pos >= len(text.rstrip()) else ""
        raise DataError(f"{place}, column {error.colno}: not JSON: {error.msg}{cut}") from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object like {{"prompt": ...}}, got {text.strip()[:40]}')
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"column {next(n for n in names if names.count(n) > 1)!r} occurs twice in one object")
    return made


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; write null, or leave the column out")
