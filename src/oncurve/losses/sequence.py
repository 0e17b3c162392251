"""The clipped surrogate per completion: with the product of the token ratios, and with their geometric mean."""

from typing import ClassVar

import torch
from pydantic import Field

from oncurve.components import Equation
from oncurve.losses.clipped import CLIPS, ClipFields
from oncurve.losses.ratios import (
    MEAN_ADVANTAGE,
    mean_advantage,
    sequence_log_ratio,
    token_log_ratio,
    trained_advantages,
    trained_lengths,
)
from oncurve.ops import clamped_ratio
from oncurve.types import TokenLoss, TokenStats, TrainBatch


class SequenceProduct(ClipFields):
    """The clipped surrogate per completion, with the ratio of the whole completion (`kind = "sequence_product"`).

        J = E[1/G Σ_i min(ρ_i A_i, clip(ρ_i, 1 - ε_low, 1 + ε_high) A_i)],   ρ_i = exp(Σ_t log ρ_it)

    A_i is the mean advantage of the trained tokens: A_i itself for outcome rewards. Each trained token carries
    loss_i/|o_i|, so the aggregation `seq-mean-token-sum` gives the mean over completions of loss_i, while a per-token
    KL adds up to the KL of the completion. Statistics are those of the completion, at each of its tokens, but for the
    KL.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    zero_statistics: ClassVar[tuple[str, ...]] = CLIPS
    reads_reference: ClassVar[bool] = False
    expected_aggregation: ClassVar[str] = "seq-mean-token-sum"

    def describe(self) -> Equation:
        """Return the surrogate of a completion, an equal part of it at each of its tokens."""
        term, legend = self._written("ρ_i", "Â_i")
        return Equation(
            f"1/|o_i| {term}", {"ρ_i": "Π_t π_θ/π_old, the ratio of the whole completion", **MEAN_ADVANTAGE, **legend}
        )

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        mask = batch.loss_mask
        by_token = token_log_ratio(stats.logprobs, batch.old_logprobs, mask)
        log_ratio = sequence_log_ratio(by_token, mask)
        advantages = mean_advantage(trained_advantages(stats, batch), mask)
        loss = self._surrogate(clamped_ratio(log_ratio), advantages) / trained_lengths(mask)
        loss = torch.where(mask, loss, 0.0)
        return TokenLoss(loss, self._stats(log_ratio, advantages, loss, by_token))


WIDE = 0.05
"""A clip beyond this is one for tokens: the mean of a completion's log-ratios does not come near it."""


class Gspo(ClipFields):
    """The clipped surrogate per completion, with the geometric mean of its token ratios (`kind = "gspo"`).

        J = E[1/G Σ_i min(ρ_i A_i, clip(ρ_i, 1 - ε_low, 1 + ε_high) A_i)],   ρ_i = exp(1/|o_i| Σ_t log ρ_it)

    A_i is the mean advantage of the trained tokens: A_i itself for outcome rewards. Each trained token carries the
    completion's loss, so `seq-mean-token-mean` gives the mean over completions, and `token-mean` weighs completions by
    their lengths. A mean of log-ratios is small, and so is the clip (section 5.1). Statistics are those of the
    completion, at each of its tokens, but for the KL. Log-ratios [.1, -.2, .3]: ρ_i = 1.06893911.

    Source: Zheng et al., arXiv:2507.18071, eq. 5.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    zero_statistics: ClassVar[tuple[str, ...]] = CLIPS
    reads_reference: ClassVar[bool] = False
    expected_aggregation: ClassVar[str] = "seq-mean-token-mean"

    clip_low: float = Field(default=3e-4, ge=0)
    clip_high: float = Field(default=4e-4, ge=0)

    @property
    def note(self) -> str | None:
        """Return what the plan says where the clip is as wide as one for tokens."""
        if max(self.clip_low, self.clip_high) <= WIDE:
            return None
        return (
            f"clips the mean ratio of a completion, which stays near 1: with clip_low = {self.clip_low:g} and "
            f"clip_high = {self.clip_high:g} clipping will hardly ever bind; the paper has 3e-4 and 4e-4"
        )

    def describe(self) -> Equation:
        """Return the surrogate of a completion, which each of its tokens carries."""
        term, legend = self._written("ρ_i", "Â_i")
        return Equation(
            term,
            {"ρ_i": "(Π_t π_θ/π_old)^(1/|o_i|), the geometric mean over the completion", **MEAN_ADVANTAGE, **legend},
        )

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        mask = batch.loss_mask
        by_token = token_log_ratio(stats.logprobs, batch.old_logprobs, mask)
        log_ratio = sequence_log_ratio(by_token, mask) / trained_lengths(mask)
        advantages = mean_advantage(trained_advantages(stats, batch), mask)
        loss = torch.where(mask, self._surrogate(clamped_ratio(log_ratio), advantages), 0.0)
        return TokenLoss(loss, self._stats(log_ratio, advantages, loss, by_token))
