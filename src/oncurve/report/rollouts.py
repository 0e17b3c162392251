"""The files `rollouts/step-000012.jsonl.gz` of a run: the groups of a step, a line each, compressed by gzip."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve import durable

LEVEL = 4
"""Of gzip: about as small as with its default of 6, in half the time."""

_NAME = re.compile(r"step-(\d{6,})\.jsonl\.gz")


class RolloutFiles:
    """The groups of a run's steps, by the number of the step. Everything that writes or reads them does it here.

    The same records give the same bytes: a file has no time and no name inside.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "rollouts"

    def path(self, step: int) -> Path:
        """Return the file of a step, whether it exists or not."""
        return self.folder / f"step-{step:06d}.jsonl.gz"

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have a file, ascending; none where there is no folder."""
        names = (_NAME.fullmatch(entry.name) for entry in self.folder.glob("step-*"))
        return tuple(sorted(int(match[1]) for match in names if match))

    @staticmethod
    def content(records: Iterable[Mapping[str, Any]]) -> bytes:
        """Return the bytes of the file of a step with these groups."""
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        return gzip.compress(text.encode("utf-8", "replace"), LEVEL, mtime=0)

    def write(self, step: int, content: bytes) -> None:
        """Write the file of a step, whole or not at all; on the disk after `sync`. Raises StorageError."""
        durable.write_file(self.path(step), content, sync=False)  # to wait for the disk would take as long as a step

    def sync(self, steps: Iterable[int]) -> None:
        """Wait until the files of these steps are on the disk; those that are removed are skipped."""
        durable.sync_files([self.path(step) for step in steps])

    def read(self, step: int) -> list[dict[str, Any]]:
        """Return the groups of a step, as `group_record` made them; without damaged ones. Empty where there is no file.

        Raises CheckpointError: the file cannot be read.
        """
        path = self.path(step)
        return durable.read_log(path, damaged=True) if path.exists() else []

    def remove(self, step: int) -> None:
        """Remove the file of a step, if it exists. Raises StorageError: the folder is a link."""
        durable.own_folder(self.folder)
        self.path(step).unlink(missing_ok=True)


def steps_in_words(steps: Sequence[int]) -> str:
    """Ascending steps in few words: "none", "7", "98 to 100", "1, 10, 20 … 100"."""
    if len(steps) <= 3:
        return ", ".join(map(str, steps)) or "none"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]} to {steps[-1]}"
    return f"{steps[0]}, {steps[1]}, {steps[2]} … {steps[-1]}"
