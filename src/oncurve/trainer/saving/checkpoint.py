"""Checkpoints: everything the next step needs, written whole or not at all, verified before use.

checkpoints/
  step-000020/   what learner and outer loop write (`learner.safetensors` ...)  state.json  manifest.json (their sha256)
                 surplus.jsonl, the groups that dynamic sampling has kept for the next step
  frozen/        tensors that are stored once, named by their hash; removed with the last checkpoint that names them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oncurve import durable
from oncurve.base.errors import CheckpointError, RunDirectoryError
from oncurve.learner import FROZEN, Learner
from oncurve.trainer.groups.surplus import load_surplus, save_surplus
from oncurve.trainer.outer import OuterLoop
from oncurve.trainer.state import TrainerState

if TYPE_CHECKING:
    from oncurve.trainer.groups.source import Groups

FORMAT = 3
"""The format of checkpoints. Since 3 a learner writes its own files into them, and frozen weights are stored once."""


class FoundCheckpoint(NamedTuple):
    """A checkpoint that verifies: its folder, its record, and a line for each newer one that does not."""

    path: Path
    record: dict[str, Any]
    notes: list[str]


class Checkpoints:
    """The checkpoints of one run. `keep` newest ones and the best stay (0 keeps all).

    `newest` is the step of the last, 0 for none; `run` the run's identity, written into each.
    """

    def __init__(self, directory: Path, keep: int, run: Mapping[str, Any] | None = None) -> None:
        self.directory, self.keep, self.run = directory, keep, dict(run or {})
        self.newest = self._best = 0

    def write(self, number: int, fill: Callable[[Path], Mapping[str, Any]], best: int = 0) -> Path:
        """Write `step-<number>` and prune older ones: `fill` writes its files into a folder and returns its record.

        The checkpoint of the step `best` is not pruned; where the disk had refused it, the best before it is not.

        Raises DiskError when the disk is full; earlier ones stay valid.
        """
        path = self.directory / f"step-{number:06d}"
        with durable.new_directory(path) as folder:
            record = {"format": FORMAT, "run": self.run, **fill(folder)}
            durable.write_file(folder / "state.json", durable.to_json(record))
        self.newest = number
        if best in dict(durable.numbered(self.directory)):
            self._best = best
        if self.keep:
            durable.prune(self.directory, self.keep, spare={self._best})
            durable.discard(self.directory / FROZEN, self._records())
        return path

    def read(self) -> FoundCheckpoint | None:
        """Return the newest checkpoint that verifies; None where there is none.

        Raises CheckpointError: none of those that are there verifies, or it is of another format.
        """
        found = durable.newest_valid(self.directory, self._frozen_problems)
        notes = [f"{path.name} is damaged and was passed over: {'; '.join(why)}" for path, why in found.skipped.items()]
        if found.path is None:
            if notes:
                raise CheckpointError("no checkpoint verifies. " + " ".join(notes))
            return None
        return FoundCheckpoint(found.path, _record(found.path), notes)

    def at(self, step: int) -> FoundCheckpoint:
        """Return the checkpoint of one step.

        Raises RunDirectoryError: there is none. CheckpointError: it is damaged, or of another format.
        """
        there = dict(durable.numbered(self.directory))
        if step not in there:
            names = ", ".join(map(str, there)) or "none"
            raise RunDirectoryError(f"there is no checkpoint of step {step} in {self.directory}; there is: {names}")
        problems = durable.verify(there[step]) or self._frozen_problems(there[step])
        if problems:
            raise CheckpointError(f"{there[step]} is damaged: {'; '.join(problems)}")
        return FoundCheckpoint(there[step], _record(there[step]), [])

    def save(
        self,
        learner: Learner,
        outer: OuterLoop,
        state: TrainerState,
        environment: Mapping[str, Any],
        groups: Groups | None = None,
    ) -> Path:
        """Write the checkpoint of a run after `state.step` steps."""

        def fill(folder: Path) -> dict[str, Any]:
            save_surplus(folder, state.surplus)
            return {
                "trainer": state.to_json(),
                "learner": dict(learner.save(folder)),
                "outer": dict(outer.save(folder)),
                "rollouts": {} if groups is None else dict(groups.save(folder, state.step)),
                "environment": dict(environment),
            }

        return self.write(state.step, fill, state.best_step)

    def restore(
        self, learner: Learner, outer: OuterLoop, groups: Groups | None = None, found: FoundCheckpoint | None = None
    ) -> tuple[TrainerState, dict[str, Any], list[str]] | None:
        """Load a checkpoint, by default the newest that verifies, into `learner` and `outer`; None where there is none.

        Returns the trainer's state, the environment it was written in, and one line for every newer checkpoint
        that did not verify and was passed over.
        """
        found = found or self.read()
        if found is None:
            return None
        path, record, notes = found
        try:
            learner.load(path, record["learner"])
            outer.load(path, record["outer"])
            if groups is not None:
                groups.load(path, record.get("rollouts", {}), learner.weights())
        except KeyError as error:
            raise CheckpointError(f"{path} lacks {error}: a run with other settings wrote it") from error
        state = TrainerState.from_json(record["trainer"], load_surplus(path))
        self.newest, self._best = state.step, state.best_step
        return state, dict(record["environment"]), notes

    def _records(self) -> Iterator[bytes]:
        """Return the records of all checkpoints, damaged ones too, as far as they can be read."""
        for _, path in durable.numbered(self.directory):
            with suppress(OSError):
                yield (path / "state.json").read_bytes()

    def _frozen_problems(self, path: Path) -> list[str]:
        """Return what is wrong with the tensors in `frozen` that a checkpoint names."""
        names = sorted(durable.stored_names((path / "state.json").read_bytes()))
        problems = [durable.problem_with_stored(self.directory / FROZEN, name) for name in names]
        return [problem for problem in problems if problem is not None]


def _record(path: Path) -> dict[str, Any]:
    """Return the record of a checkpoint. Raises CheckpointError: it is of another format."""
    record: dict[str, Any] = durable.read_json(path / "state.json")
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {record.get('format')}, and this oncurve reads format {FORMAT} alone: "
            "resume the run with the version that wrote it"
        )
    return record
