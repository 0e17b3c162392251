"""Checkpoints: everything the next step needs, written whole or not at all, verified before use.

checkpoints/
  step-000020/   learner.safetensors  state.json  manifest.json (sha256 of both)
  frozen/        reference weights, named by their hash, stored once
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.errors import CheckpointError
from oncurve.learner import Learner
from oncurve.trainer.state import TrainerState

__all__ = ["Checkpoints"]

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run. `keep` newest ones stay (0 keeps all); `newest`: the step of the last, 0 for none."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep
        self.newest = 0
        self._reference: str | None = None

    def save(self, learner: Learner, state: TrainerState, environment: Mapping[str, Any]) -> Path:
        """Write `step-<n>` and prune older ones. Raises OncurveError when the disk is full; earlier ones stay valid."""
        if self._reference is None:
            frozen = learner.reference_state()
            if frozen is not None:
                self._reference = durable.store(self.directory / "frozen", frozen)
        tensors, meta = learner.state()
        record = {
            "format": FORMAT,
            "trainer": state.to_json(),
            "learner": meta,
            "reference": self._reference,
            "environment": dict(environment),
        }
        path = self.directory / f"step-{state.step:06d}"
        durable.write_directory(path, {"learner.safetensors": tensors, "state.json": durable.to_json(record)})
        self.newest = state.step
        if self.keep:
            durable.prune(self.directory, "step-", self.keep)
        return path

    def restore(self, learner: Learner) -> tuple[TrainerState, dict[str, Any], list[str]] | None:
        """Load the newest checkpoint that verifies into `learner`; None where there is none.

        Returns the trainer's state, the environment it was written in, and one line for every newer checkpoint
        that did not verify and was passed over.
        """
        found = durable.newest_valid(self.directory, "step-")
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
        state = TrainerState.from_json(record["trainer"])
        self.newest = state.step
        return state, dict(record["environment"]), notes
