"""The files of a run's groups: `rollouts/step-000012.jsonl.gz`, a line each, and those that belong to it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.report.rows import packed, row_of

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
