"""GMPO: the geometric mean of token ratios that are clipped one by one, in log space (arXiv:2507.20673)."""

from typing import ClassVar

import torch
from pydantic import Field

from oncurve.components import Component, Equation
from oncurve.losses.ratios import (
    MEAN_ADVANTAGE,
    mean_advantage,
    ratio_stats,
    sequence_log_ratio,
    token_log_ratio,
    trained_advantages,
    trained_lengths,
)
from oncurve.ops import clamped_ratio, clip
from oncurve.types import TokenLoss, TokenStats, TrainBatch


class Gmpo(Component):
    """The geometric mean of a completion's token ratios, each clipped before (`kind = "gmpo"`).

        J = E[1/G Σ_i A_i exp(1/|o_i| Σ_t c_it)]
        c_it = min(log ρ_it, ε_high) where A_i > 0, else max(log ρ_it, -ε_low)

    That is the paper's minimum over ρ A and clip(ρ) A, taken token by token: a token that has moved far enough in the
    direction of the advantage loses its gradient, the others of its completion keep theirs. A_i is the mean advantage
    of the trained tokens; each of them carries the completion's loss. Log-ratios [.1, -.2, .3], A = 1 and
    ε_high = .2: ratio 1.03389511.

    Source: Zhao et al., arXiv:2507.20673.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    zero_statistics: ClassVar[tuple[str, ...]] = ("policy/clip_low", "policy/clip_high")
    reads_reference: ClassVar[bool] = False
    expected_aggregation: ClassVar[str] = "seq-mean-token-mean"

    clip_low: float = Field(default=0.4, ge=0)
    """ε_low, in log space: the clipped ratio of a token is at least e^-ε_low."""

    clip_high: float = Field(default=0.4, ge=0)
    """ε_high, in log space: the clipped ratio of a token is at most e^ε_high."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    def describe(self) -> Equation:
        """Return the geometric mean of a completion, which each of its tokens carries."""
        clipped = f"min(ρ_it, e^{self.clip_high:g}) where Â_i > 0, else max(ρ_it, e^-{self.clip_low:g})"
        return Equation("(Π_t c_it)^(1/|o_i|) Â_i", {"c_it": clipped, "ρ_it": "π_θ/π_old of token t", **MEAN_ADVANTAGE})

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        mask = batch.loss_mask
        log_ratio = token_log_ratio(stats.logprobs, batch.old_logprobs, mask)
        advantages = mean_advantage(trained_advantages(stats, batch), mask)
        good = advantages > 0
        clipped = torch.where(good, clip(log_ratio, high=self.clip_high), clip(log_ratio, low=-self.clip_low))
        ratio = clamped_ratio(sequence_log_ratio(clipped, mask) / trained_lengths(mask))
        loss = torch.where(mask, -advantages * ratio, 0.0)
        counted = {
            "policy/clip_low": (advantages < 0) & (log_ratio < -self.clip_low),
            "policy/clip_high": good & (log_ratio > self.clip_high),
        }
        return TokenLoss(loss, ratio_stats(log_ratio, loss, counted))
