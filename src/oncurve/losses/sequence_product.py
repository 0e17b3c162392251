"""The clipped surrogate per completion, with the product of the token ratios."""

from __future__ import annotations

from typing import ClassVar

import torch

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
