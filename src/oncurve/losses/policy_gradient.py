"""The policy gradient: without a ratio, and with a clipped importance weight."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.losses.ratios import ratio_stats, token_log_ratio, trained_advantages
from oncurve.ops import clamped_ratio
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


class Cispo(Component):
    """The policy gradient of each token, weighted by its clipped importance ratio (`kind = "cispo"`).

        loss_it = -sg(clip(ρ_it, 1 - ε_low, 1 + ε_high)) Â_it log π_θ

    The clip bounds the weight and takes no token's gradient away, as that of `clipped` does. log π = -1, Â = 1 and
    ρ = 1: loss 1, gradient -1.

    Source: MiniMax-M1, arXiv:2506.13585.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = False

    clip_low: float = Field(default=0.2, ge=0)
    """ε_low: the weight is at least 1 - ε_low; from 1 on it has no lower bound, as in the paper."""

    clip_high: float = Field(default=0.2, gt=-1)
    """ε_high: the weight is at most 1 + ε_high, whatever `clip_low` says. TRL's `epsilon_high` is that bound itself:
    its 5.0 is 4.0 here, and its default of 0.2 is -0.8, which shrinks every gradient to a fifth."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    @property
    def note(self) -> str | None:
        """Return what the plan says of a bound that shrinks the gradient of every token."""
        if self.clip_high >= 0:
            return None
        bound = 1 + self.clip_high
        return f"weights every token by {bound:g} at most: that shrinks all gradients; the value of ScaleRL is 5"

    def describe(self) -> Equation:
        """Return the log-probability of a token, weighted by its advantage and its clipped ratio."""
        term = f"sg(clip(ρ_it, {1 - self.clip_low:g}, {1 + self.clip_high:g})) Â_it log π_θ"
        return Equation(term, {"ρ_it": "π_θ/π_old of token t", "sg": "the value without its gradient"})

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        log_ratio = token_log_ratio(stats.logprobs, batch.old_logprobs, batch.loss_mask)
        ratio = clamped_ratio(log_ratio.detach())
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        logprobs = torch.where(batch.loss_mask, stats.logprobs, 0.0)
        loss = weight * reinforce_loss(logprobs, trained_advantages(stats, batch))
        return TokenLoss(loss, ratio_stats(log_ratio, loss, {"policy/weight_clip": weight != ratio}))
