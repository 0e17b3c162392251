"""What changes during a run and must survive it, beside the learner's tensors: one small serialised record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oncurve.errors import CheckpointError

__all__ = ["TrainerState"]


@dataclass(frozen=True)
class TrainerState:
    """Where the run stands after `step` whole steps.

    Example: after 3 steps of 32 prompts, `TrainerState(step=3, cursor=96, draw=3, metrics_bytes=2210)`.

    step            steps finished
    cursor          prompts taken from the stream so far; epoch and position follow from it
    draw            batches drawn so far: a part of every sampled token's randomness key
    skipped_in_a_row   updates skipped for a non-finite loss or gradient, without a good one since
    metrics_bytes   length of `metrics.jsonl`; what lies beyond was written by a step that is done again
    seconds         time spent in steps so far
    kl_coef         β of the next step, where the KL is a part of the reward and steered
    """

    step: int = 0
    cursor: int = 0
    draw: int = 0
    skipped_in_a_row: int = 0
    metrics_bytes: int = 0
    seconds: float = 0.0
    kl_coef: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TrainerState:
        """The inverse of `to_json`. Raises CheckpointError where fields are missing or unknown."""
        try:
            return cls(**record)
        except TypeError as error:
            raise CheckpointError(f"the trainer's state was written by another version of oncurve: {error}") from error
