"""Checkpoints: everything the next step needs, written whole or not at all, verified before use.

checkpoints/
  step-000020/   learner.safetensors  outer.safetensors (where there is one)  state.json  manifest.json (their sha256)
  frozen/        reference weights, named by their hash, stored once for each move; gone with the last that names them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.errors import CheckpointError
from oncurve.learner import Learner
from oncurve.trainer.protocols import Outer
from oncurve.trainer.state import TrainerState

__all__ = ["FORMAT", "Checkpoints"]

FORMAT = 2
"""Of `state.json`, of a reward model's training too. 1 did not say which run it is of."""


class Checkpoints:
    """The checkpoints of one run. `keep` newest ones stay (0 keeps all); `newest`: the step of the last, 0 for none.

    `run` is the run's identity (`oncurve.run.identity`), which is written into each.
    """

    def __init__(self, directory: Path, keep: int, run: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self.keep = keep
        self.run = dict(run or {})
        self.newest = 0
        self._reference: str | None = None
        self._reference_version = 0

    def save(self, learner: Learner, outer: Outer, state: TrainerState, environment: Mapping[str, Any]) -> Path:
        """Write `step-<n>` and prune older ones. Raises OncurveError when the disk is full; earlier ones stay valid."""
        self._store_reference(learner)
        tensors, meta = learner.state()
        kept, outer_meta = outer.state()
        record = {
            "format": FORMAT,
            "trainer": state.to_json(),
            "learner": meta,
            "reference": self._reference,
            "environment": dict(environment),
            "run": self.run,
            **({"outer": outer_meta} if kept or outer_meta else {}),
        }
        files = {"learner.safetensors": tensors, **({"outer.safetensors": kept} if kept else {})}
        path = self.directory / f"step-{state.step:06d}"
        durable.write_directory(path, {**files, "state.json": durable.to_json(record)})
        self.newest = state.step
        if self.keep:
            durable.prune(self.directory, "step-", self.keep)
            durable.discard(self.directory / "frozen", self._records())
        return path

    def _store_reference(self, learner: Learner) -> None:
        """Store the reference, unless it is stored as it is."""
        if self._reference is None or self._reference_version != learner.reference_version:
            frozen = learner.reference_state()
            self._reference = None if frozen is None else durable.store(self.directory / "frozen", frozen)
            self._reference_version = learner.reference_version

    def _records(self) -> Iterator[bytes]:
        """What the checkpoints say, also damaged ones, as far as they can be read."""
        for _, path in durable.numbered(self.directory, "step-"):
            with suppress(OSError):
                yield (path / "state.json").read_bytes()

    def _reference_problems(self, path: Path) -> list[str]:
        """What is wrong with the reference that a checkpoint names."""
        name = durable.read_json(path / "state.json").get("reference")
        problem = None if name is None else durable.problem_with_stored(self.directory / "frozen", name)
        return [] if problem is None else [problem]

    def restore(self, learner: Learner, outer: Outer) -> tuple[TrainerState, dict[str, Any], list[str]] | None:
        """Load the newest checkpoint that verifies into `learner` and `outer`; None where there is none.

        Returns the trainer's state, the environment it was written in, and one line for every newer checkpoint
        that did not verify and was passed over.
        """
        found = durable.newest_valid(self.directory, "step-", self._reference_problems)
        notes = [f"{path.name} is damaged and was passed over: {'; '.join(why)}" for path, why in found.skipped.items()]
        if found.path is None:
            if notes:
                raise CheckpointError("no checkpoint verifies. " + " ".join(notes))
            return None
        record = durable.read_json(found.path / "state.json")
        if record.get("format") != FORMAT:
            raise CheckpointError(f"{found.path} has format {record.get('format')}; this oncurve reads {FORMAT}")
        self._reference = record["reference"]
        if self._reference is not None:
            learner.load_reference(durable.fetch(self.directory / "frozen", self._reference))
        learner.load_state(durable.read_tensors(found.path / "learner.safetensors"), record["learner"])
        self._reference_version = learner.reference_version
        kept = found.path / "outer.safetensors"
        outer.load_state(durable.read_tensors(kept) if kept.exists() else {}, record.get("outer", {}))
        state = TrainerState.from_json(record["trainer"])
        self.newest = state.step
        return state, dict(record["environment"]), notes
