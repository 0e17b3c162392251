"""The interface between trainer and learner, wherever the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from oncurve.metrics import Metrics
from oncurve.models import Weights
from oncurve.types import TrainBatch


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update. `skipped`: nothing was changed, because loss or gradient was not finite (`reason`)."""

    metrics: Metrics
    skipped: bool = False
    reason: str = ""

    @classmethod
    def skip(cls, reason: str) -> UpdateResult:
        """Return the result of an update that is skipped for a reason: its only metric counts it."""
        metrics = Metrics()
        metrics.add("optim/updates_skipped", 1.0)
        return cls(metrics, skipped=True, reason=reason)


class Learner(Protocol):
    """Owns the policy's weights and whatever is trained with them. The trainer sees a learner through these alone.

    Weights may live in this process or elsewhere, on one machine or several. Any method may raise LostStateError, where
    a part of them is lost: then the run goes back to its last checkpoint, with a new learner.
    """

    @property
    def version(self) -> int:
        """Return how often the policy's weights have changed."""

    @property
    def changes(self) -> int:
        """Return how often anything that `save` writes has begun to change, the reference included.

        Counted before the first tensor changes: while it is equal, `save` writes the same, whatever was raised in
        between. A skipped update counts too, because the schedule moves on.
        """

    def weights(self) -> Weights:
        """Return what an engine samples from: the weights as they are now, with their version."""

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """Return the batch with what `want` names, without a gradient, in one call.

        old         `old_logprobs (B, T)`, the log-probs under the weights as they are now
        entropy     `entropy (B, T)` of the next-token distributions under these weights, at the sampling temperature
        reference   what the KL term needs of the reference: `ref_logprobs (B, T)`, perhaps `ref_hidden (N, H)`
        teacher     `teacher_logprobs (B, T)` of a distillation's teacher, which reads `teacher_prompts`, where they are
                    there, in place of `prompts`
        values      the critic's `values (B, T)` and `bootstrap_values (B,)`

        What the learner does not have, a reference, a teacher or a critic, is left out.
        """

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one optimizer update on a batch with `advantages` and `token_weights`."""

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref; at α = 1 KL is exactly 0. Without a reference `changes` stays as it is."""

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write everything that the next update needs into files in `folder`; returns a JSON-able record for `load`.

        `folder` becomes a checkpoint when all is written: a manifest then covers every file in it, so several processes
        may write their own. Tensors that seldom change go into `folder.parent / "frozen"` once (`durable.store`); one
        stays there as long as a checkpoint's record has its name.
        """

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError for another model's checkpoint."""

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form, whole or not at all, from its full-precision weights."""

    def close(self) -> None:
        """Release what the learner holds. Called when the run ends, whatever ended it; twice is allowed."""
