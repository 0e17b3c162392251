"""SAPO: a smooth gate on the importance ratio in the place of a clip (arXiv:2511.20347)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.losses.ratios import ratio_stats, token_log_ratio, trained_advantages
from oncurve.ops import clamped_ratio
from oncurve.types import TokenLoss, TokenStats, TrainBatch


def soft_gate(ratio: Float[Tensor, "*shape"], tau: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `f(ρ) = 4/τ σ(τ (ρ - 1))`, whose slope is 1 at ρ = 1 and falls to 0 on both sides, the sooner the larger
    τ.

    Any one shape. Example: f(1.5) = 2.48983732 at τ = 1.
    """
    return 4 / tau * torch.sigmoid(tau * (ratio - 1))


class Sapo(Component):
    """The ratio of each token through a smooth gate (`kind = "sapo"`).

        loss_it = -Â_it 4/τ σ(τ (ρ_it - 1)),   τ = τ₊ where Â_it > 0, else τ₋

    At ρ = 1 its gradient is that of `clipped`; away from 1 it fades by 4 σ (1 - σ) on both sides, so that nothing pulls
    back a bad token whose ratio has become very large (as with a `dual_clip`, by choice).

    Source: Gao et al., arXiv:2511.20347.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = False

    tau_positive: float = Field(default=1.0, gt=0)
    """τ₊: the larger, the nearer to 1 the gradient of a good token fades."""

    tau_negative: float = Field(default=1.05, gt=0)
    """τ₋: the same for bad tokens, whose gradient is the noisier one; the paper has it above τ₊."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    def describe(self) -> Equation:
        """Return the gated ratio of a token, weighted by its advantage."""
        tau = f"{self.tau_positive:g} where Â_it > 0, else {self.tau_negative:g}"
        return Equation("4/τ σ(τ (ρ_it - 1)) Â_it", {"ρ_it": "π_θ/π_old of token t", "τ": tau, "σ": "the sigmoid"})

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        log_ratio = token_log_ratio(stats.logprobs, batch.old_logprobs, batch.loss_mask)
        advantages = trained_advantages(stats, batch)
        tau = torch.full_like(advantages, self.tau_negative).masked_fill(advantages > 0, self.tau_positive)
        gated = soft_gate(clamped_ratio(log_ratio), tau)
        sigma = gated.detach() * tau / 4
        loss = -advantages * gated
        return TokenLoss(loss, ratio_stats(log_ratio, loss, {"policy/gate": 4 * sigma * (1 - sigma)}))
