"""What the trainer knows of a learner, wherever its weights live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from oncurve.metrics import Metrics
from oncurve.models import CausalModel
from oncurve.types import TrainBatch

__all__ = ["Learner", "UpdateResult"]


@dataclass(frozen=True)
class UpdateResult:
    """What an update did. `skipped`: loss or gradient was not finite, nothing was changed, and `reason` says what."""

    metrics: Metrics
    skipped: bool = False
    reason: str = ""


class Learner(Protocol):
    """Owns the policy's weights. The trainer knows no more of it than this, wherever the weights live."""

    @property
    def version(self) -> int:
        """How often the weights have changed."""

    def policy(self) -> CausalModel:
        """The model to sample from, with the weights as they are now."""

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One optimizer update on a batch with `advantages` and `token_weights`."""

    def old_logprobs(self, batch: TrainBatch) -> Tensor:
        """Log-probs `(B, T)` of the batch under the weights as they are now, without a gradient."""

    def reference_streams(self, batch: TrainBatch) -> TrainBatch:
        """The batch with what the KL term needs of the reference; unchanged where there is no reference."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a JSON-able record: everything that the next update needs, the reference aside."""

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`, bit for bit."""

    @property
    def changes(self) -> int:
        """How often anything of `state()`, or the reference, has begun to change.

        Counted before the first tensor changes: where it is what it was, `state()` is what it was, whatever was raised
        in between. A skipped update counts too, because the schedule moves on.
        """
        ...

    @property
    def reference_version(self) -> int:
        """How often the reference has moved; 0: it is as it was given, or there is none."""

    def move_reference(self, mixup: float) -> None:
        """π_ref ← mixup π_θ + (1 - mixup) π_ref; at 1 KL is exactly 0. Nothing happens where there is no reference."""

    def reference_state(self) -> dict[str, Tensor] | None:
        """The reference's tensors, which `move_reference` alone changes; None where there is no reference."""

    def load_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `reference_state`."""
