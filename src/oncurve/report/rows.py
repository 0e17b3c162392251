"""The index of a step: one row per group, so that groups are listed without reading them and read one at a time."""

from __future__ import annotations

import gzip
import json
import math
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

PROMPT_CHARACTERS = 120
"""How much of a prompt's text a row has."""

_WHOLE = ("group", "prompt_id", "right", "truncated", "invalid", "size", "offset", "bytes", "line")
COLUMNS = dict.fromkeys(_WHOLE, "i8") | dict.fromkeys(("mean", "spread", "largest", "length"), "f8")
"""The numbers of a row, with numpy's names of their types. Where a value is not known it is NaN, in `right` -1."""

_PIECE_BYTES = 1 << 12  # of a damaged file all before the damaged piece is had

Columns = Mapping[str, np.ndarray[Any, Any]]


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a group, without its place. Raises KeyError, TypeError: it is no group's record.

    A completion is right if the verifier that the record names has given it 1 or more.
    """
    completions, verifier = record["completions"], record.get("verifier")
    rewards = [item["reward"] for item in completions if item.get("reward") is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else math.nan
    squares = math.fsum((reward - mean) ** 2 for reward in rewards)
    advantages = [value for item in completions for value in item.get("advantages") or [item.get("advantage")]]
    verdicts = [(item.get("parts") or {}).get(verifier) or 0 for item in completions if item.get("valid")]
    return {
        "prompt_id": record["prompt"].get("id", -1),
        "prompt": record["prompt"]["text"][:PROMPT_CHARACTERS],
        "mean": mean,
        "spread": math.sqrt(squares / max(1, len(rewards) - 1)) if rewards else math.nan,
        "right": -1 if verifier is None else sum(value >= 1 for value in verdicts),
        "truncated": sum(item.get("ended") in ("length", "budget") for item in completions),
        "invalid": sum(item.get("valid") is False for item in completions),
        "largest": max((abs(value) for value in advantages if value is not None), default=math.nan),
        "length": statistics.fmean(len(item.get("ids") or ()) for item in completions) if completions else 0.0,
        "size": len(completions),
    }


def packed(source: int, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the index of a file of groups that has `source` bytes: columns as safetensors, compressed by gzip."""
    texts = [row["prompt"].encode("utf-8", "replace") for row in rows]
    columns = {name: np.array([row[name] for row in rows], dtype=kind) for name, kind in COLUMNS.items()}
    ends = np.cumsum([len(text) for text in texts], dtype="i8")
    blob = np.frombuffer(b"".join(texts), dtype="u1")
    content = save({**columns, "source": np.array([source], dtype="i8"), "texts": blob, "ends": ends})
    return gzip.compress(content, 1, mtime=0)


def parsed(content: bytes, source: int) -> tuple[Columns, list[str]]:
    """Return the columns of an index, and the beginnings of the prompts.

    Raises OSError, EOFError, KeyError, ValueError, zlib.error, SafetensorError: it is damaged, or the index of another
    file than one of `source` bytes.
    """
    found = load(gzip.decompress(content))
    columns = {name: found[name].astype(kind, copy=False) for name, kind in COLUMNS.items()}
    blob, ends = found["texts"].tobytes(), found["ends"].tolist()
    if int(found["source"][0]) != source or {len(values) for values in columns.values()} != {len(ends)}:
        raise ValueError("it is the index of another file")
    return columns, [blob[start:end].decode("utf-8", "replace") for start, end in zip([0, *ends], ends, strict=False)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of groups, as far as it can be read; damaged lines count and have no row."""
    rows: list[dict[str, Any]] = []
    number = 0
    for offset, size, text in members(path):
        lines = text.split(b"\n")[:-1]
        for line in range(len(lines)):
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                place = {"group": number + line, "offset": offset, "bytes": size, "line": line}
                rows.append({**row_of(record_at(lines, line) or {}), **place})
        number += len(lines)
    return rows


def record_at(lines: Sequence[bytes], line: int) -> dict[str, Any] | None:
    """Return the record in a line; None where there is no such line, or it is damaged."""
    try:
        found = json.loads(lines[line])
    except (ValueError, IndexError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def texts_in(record: Mapping[str, Any]) -> Iterator[str]:
    """Return the texts of a group in which one looks for words: of the prompt, of completions and of their turns."""
    parts = [record.get("prompt", {}), *record.get("completions", ())]
    for part in parts:
        yield from (str(each.get("text", "")) for each in (part, *(part.get("turns") or ())))


def members(path: Path, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Return the offset, the length and the text of each gzip member of a file from `start` on.

    The last one that is returned may be damaged: it has what can be had, and nothing follows it.
    """
    inner, parts, place = zlib.decompressobj(wbits=31), list[bytes](), start  # 31: gzip's header and check
    with suppress(OSError, zlib.error), open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(_PIECE_BYTES):
            while piece:
                parts.append(inner.decompress(piece))
                place += len(piece) - len(inner.unused_data)
                piece = inner.unused_data
                if inner.eof:
                    yield start, place - start, b"".join(parts)
                    inner, parts, start = zlib.decompressobj(wbits=31), [], place
    if parts:
        yield start, place - start, b"".join(parts)
