"""The files of a run: groups, a line each, with an index of a row per group; and results of held-out problems.

rollouts/step-000012.jsonl.gz   the groups            rollouts/step-000012.index.gz   their index
evaluations/step-000012.json.gz   an evaluation, and what flipped between two of them

By the index groups are listed without reading them, and read one at a time.
"""

import gzip
import json
import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from oncurve import durable
from oncurve.base.errors import RunDirectoryError

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


class CutFileError(ValueError):
    """A file of groups is shorter than when its index was written."""


def parsed(content: bytes, source: int) -> tuple[Columns, list[str]]:
    """Return the columns of an index, and the beginnings of the prompts.

    Raises OSError, EOFError, KeyError, ValueError, zlib.error, SafetensorError: it is damaged, or the index of another
    file than one of `source` bytes.
    """
    found = load(gzip.decompress(content))
    columns = {name: found[name].astype(kind, copy=False) for name, kind in COLUMNS.items()}
    blob, ends = found["texts"].tobytes(), found["ends"].tolist()
    if (wrote := int(found["source"][0])) > source:
        raise CutFileError(f"{source:,} of its {wrote:,} bytes are left")
    if wrote != source or {len(values) for values in columns.values()} != {len(ends)}:
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
    for part in (record.get("prompt", {}), *record.get("completions", ())):
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


GROUPS, INDEX, TOKENS = "jsonl.gz", "index.gz", "tokens"
"""The suffixes of the groups, of their index, and of the numbers and texts of their tokens."""

LEVEL = 4
"""Of gzip: about as small as with its default of 6, in half the time."""

BLOCK_BYTES = 64 << 10
"""The least text of a gzip member, but for the last: one group is read without the others, and the file stays small."""


class RolloutFiles:
    """The files of a run's groups, by the number of the step. Everything that writes them does it here.

    The same records give the same bytes: a file has no time and no name inside.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "rollouts"

    def path(self, step: int, suffix: str = GROUPS) -> Path:
        """Return a file of a step, whether it exists or not."""
        return self.folder / f"step-{step:06d}.{suffix}"

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have groups, ascending; none where there is no folder."""
        return steps_in(self.folder, GROUPS)

    @staticmethod
    def content(records: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
        """Return the bytes of a step's groups and of their index, by suffix."""
        blocks, rows = list[bytes](), list[dict[str, Any]]()
        offset, waiting, text = 0, list[dict[str, Any]](), bytearray()

        def end_block() -> None:
            nonlocal offset
            blocks.append(gzip.compress(text, LEVEL, mtime=0))
            rows.extend({**row, "offset": offset, "bytes": len(blocks[-1])} for row in waiting)
            offset += len(blocks[-1])
            waiting.clear()
            text.clear()

        for number, record in enumerate(records):
            waiting.append({**row_of(record), "group": number, "line": len(waiting)})
            text += json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            if len(text) >= BLOCK_BYTES:
                end_block()
        if text or not blocks:
            end_block()
        return {GROUPS: b"".join(blocks), INDEX: packed(offset, rows)}

    def write(self, step: int, content: Mapping[str, bytes]) -> None:
        """Write the files of a step, each whole or not at all; on the disk after `sync`. Raises StorageError."""
        for suffix, data in content.items():  # to wait for the disk would take as long as a step
            durable.write_file(self.path(step, suffix), data, sync=False)

    def sync(self, steps: Iterable[int]) -> None:
        """Wait until the files of these steps are on the disk; those that are removed are skipped."""
        durable.sync_files([self.path(step, suffix) for step in steps for suffix in (GROUPS, TOKENS)])

    def remove(self, step: int) -> None:
        """Remove the files of a step, if they exist. Raises StorageError: the folder is a link."""
        durable.own_folder(self.folder)
        for suffix in (GROUPS, INDEX, TOKENS):
            self.path(step, suffix).unlink(missing_ok=True)


def steps_in(folder: Path, suffix: str) -> tuple[int, ...]:
    """Return the steps that have a file `step-000012.SUFFIX` in a folder, ascending; none where there is no folder."""
    names = (re.fullmatch(rf"step-(\d{{6,}})\.{suffix}", entry.name) for entry in folder.glob("step-*"))
    return tuple(sorted(int(match[1]) for match in names if match))


def steps_in_words(steps: Sequence[int], near: int | None = None) -> str:
    """Ascending steps in few words: "none", "7", "98 to 100", "1, 10, 20 … 100"; and which is the nearest to `near`."""
    if near is not None and len(steps) > 1:
        return f"{steps_in_words(steps)}; the nearest is {min(steps, key=lambda each: abs(each - near))}"
    if len(steps) <= 3:
        return ", ".join(map(str, steps)) or "none"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]} to {steps[-1]}"
    return f"{steps[0]}, {steps[1]}, {steps[2]} … {steps[-1]}"


RESULTS = "json.gz"

CHANGES = ("right to wrong", "wrong to right", "still right", "still wrong", "")
"""What may become of a problem between two evaluations; "": the verifier does not apply to it."""


class EvaluationFiles:
    """The evaluations of a run, a file each: what became of every problem. The same results give the same bytes."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "evaluations"

    def path(self, step: int) -> Path:
        """Return the file of the evaluation after `step`, whether it exists or not."""
        return self.folder / f"step-{step:06d}.{RESULTS}"

    def steps(self) -> tuple[int, ...]:
        """Return the steps after which the policy was evaluated, ascending; 0 is before the first."""
        return steps_in(self.folder, RESULTS)

    def write(self, step: int, problems: Sequence[Mapping[str, Any]]) -> None:
        """Write the results of an evaluation, whole or not at all. Raises StorageError.

        problems   one mapping per problem: `id`, `prompt`, `answer`, `reply` (the greedy completion), `ended`,
                   `reward`, `fault`, `right` (null: the verifier does not apply), `samples` ([right, of]; null: none)
        """
        text = json.dumps(problems, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        durable.write_file(self.path(step), gzip.compress(text, LEVEL, mtime=0))

    def remove_after(self, step: int) -> None:
        """Remove the evaluations after later steps than this. Raises StorageError: the folder is a link."""
        durable.own_folder(self.folder)
        for later in (each for each in self.steps() if each > step):
            self.path(later).unlink(missing_ok=True)

    def read(self, step: int) -> dict[int, dict[str, Any]]:
        """Return the results by the problem's id. Raises RunDirectoryError: there are none, or they are damaged."""
        try:
            return {int(each["id"]): each for each in json.loads(gzip.decompress(self.path(step).read_bytes()))}
        except (OSError, EOFError, zlib.error, ValueError, RecursionError, KeyError, TypeError) as error:
            if step in (known := self.steps()):
                raise RunDirectoryError(f"{self.path(step)} is damaged ({error})") from error
            there = f"there are those after: {steps_in_words(known, step)}; see eval.every"
            raise RunDirectoryError(
                f"{self.folder.parent}: no evaluation was made after step {step}; {there}"
            ) from error


def compared(run: Path, first: int | None = None, last: int | None = None) -> dict[str, Any]:
    """Return what became of the problems of two evaluations, by default of the run's first and last.

    {"steps": [0, 20, 40], "first": 0, "last": 40, "counts": {"right to wrong": 2, ...}, "problems": [
        {"problem": 7, "prompt": ..., "change": "right to wrong", "samples": [[6, 8], [1, 8]]}]}

    What flipped comes first; `samples` are the right ones of those sampled, null where there were none; `change` is ""
    where the verifier does not apply. Problems that only one of the two has are left out.

    Raises RunDirectoryError: an evaluation is not there, or damaged.
    """
    steps = (files := EvaluationFiles(run)).steps()
    first = (steps[0] if steps else 0) if first is None else first
    last = (steps[-1] if steps else 0) if last is None else last
    before, after = files.read(first), files.read(last)
    problems = [
        {
            "problem": number,
            "prompt": one["prompt"][:PROMPT_CHARACTERS],
            "change": _change(one["right"], two["right"]),
            "samples": [one["samples"], two["samples"]],
        }
        for number, one in before.items()
        if (two := after.get(number)) is not None and two["prompt"] == one["prompt"]
    ]
    problems.sort(key=lambda each: (CHANGES.index(each["change"]), each["problem"]))
    counts = Counter(each["change"] for each in problems)
    found = {"steps": list(steps), "first": first, "last": last, "problems": problems}
    return found | {"counts": {change: counts[change] for change in CHANGES[:-1]}}


def _change(before: bool | None, after: bool | None) -> str:
    if before is None or after is None:
        return ""
    words = "wrong", "right"
    return f"still {words[after]}" if before == after else f"{words[before]} to {words[after]}"
