"""The results of held-out problems, `evaluations/step-000012.json.gz`, and what flipped between two evaluations."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import RunDirectoryError
from oncurve.report.rollouts import LEVEL, steps_in, steps_in_words
from oncurve.report.rows import PROMPT_CHARACTERS

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
            found = json.loads(gzip.decompress(self.path(step).read_bytes()))
            return {int(each["id"]): each for each in found}
        except (OSError, EOFError, zlib.error, ValueError, RecursionError, KeyError, TypeError) as error:
            known = steps_in_words(self.steps(), step)
            reason = f"no results of an evaluation after step {step} can be read; there are those after: {known}"
            raise RunDirectoryError(f"{self.folder.parent}: {reason}") from error


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
