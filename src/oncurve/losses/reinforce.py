"""The policy gradient without a ratio (Williams 1992)."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.losses.ratios import trained_advantages
from oncurve.types import TokenLoss, TokenStats, TrainBatch


def reinforce_loss(logprobs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `-Â log π_θ` (Williams 1992). Any one shape."""
    return -advantages * logprobs


class Reinforce(Component):
    """The policy gradient itself (`kind = "reinforce"`): for one update per rollout, on-policy."""

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = False
    importance_ratio: ClassVar[bool] = False

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        logprobs = torch.where(batch.loss_mask, stats.logprobs, 0.0)
        loss = reinforce_loss(logprobs, trained_advantages(stats, batch))
        return TokenLoss(loss, {"policy/objective_loss": loss.detach()})

    def describe(self) -> Equation:
        """Return the log-probability of a token, weighted by its advantage."""
        return Equation("Â_it log π_θ", {"π_θ": "the policy's probability of token t"})
