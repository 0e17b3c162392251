"""DPPO: a trust region of each token's probability, measured from the policy that sampled (arXiv:2602.04879).

p is the probability of a sampled token under the policy, p_μ under the sampler. The two-way divergence of
"this token or another one" needs no other probability:

    tv    |p - p_μ|
    kl    p_μ ln(p_μ/p) + (1 - p_μ) ln((1 - p_μ)/(1 - p))

At p_μ = .4, p = .65: tv .25, kl .12920; at p = .5: tv .1, kl .02014.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation, Impossible, Inert
from oncurve.losses.policy_gradient import reinforce_loss
from oncurve.losses.ratios import ratio_stats, token_log_ratio, trained_advantages
from oncurve.ops import clamped_ratio
from oncurve.types import TokenLoss, TokenStats, TrainBatch

_WRITTEN = {"tv": "|p - p_μ|", "kl": "p_μ ln(p_μ/p) + (1 - p_μ) ln((1 - p_μ)/(1 - p))"}


def binary_tv(logprobs: Float[Tensor, "*shape"], sampler_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return total variation `|p - p_μ|` of the sampled token against all others. Any one shape."""
    return (logprobs.exp() - sampler_logprobs.exp()).abs()


def binary_kl(logprobs: Float[Tensor, "*shape"], sampler_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `KL(μ||π) = p_μ ln(p_μ/p) + (1 - p_μ) ln((1 - p_μ)/(1 - p))` of the sampled token against all others.

    Any one shape, in nats. Where 1 - p is 0 in the dtype, its smallest positive number stands for it.
    """
    tiny = torch.finfo(logprobs.dtype).tiny
    other, sampler_other = ((-torch.expm1(each)).clamp(min=tiny) for each in (logprobs, sampler_logprobs))
    kept = sampler_logprobs.exp() * (sampler_logprobs - logprobs)
    return kept + sampler_other * (sampler_other.log() - other.log())


_DIVERGENCE = {"tv": binary_tv, "kl": binary_kl}


class Dppo(Component):
    """The policy gradient within a trust region of each token's probability (`kind = "dppo"`).

        loss_it = -keep_it sg(min(ρ_it, c)) Â_it log π_θ,   ρ_it = π_θ/μ

    keep_it is 0 where the divergence of token t from the sampler is above δ and the advantage pushes it further away,
    else 1. μ is the sampler's policy, by the log-probs that it recorded: no others are needed, and a sampler that
    differs from the learner is corrected for. A ratio says little of a rare token (.001 to .002 is 2) and hides the
    move of a frequent one (.99 to .8 is .81); a divergence measures both on one scale.

    At p_μ = .4 and δ = .2, tv: Â = 1 keeps p = .5 and drops p = .65; Â = -1 keeps p = .3 and drops p = .15.

    Source: Qi et al., arXiv:2602.04879, eq. 11 to 14.
    """

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = False
    corrects_for_sampler: ClassVar[bool] = True
    zero_statistics: ClassVar[tuple[str, ...]] = ("policy/dropped",)

    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("learner.old_logprobs",),
            ("objective.kind",),
            lambda _: True,
            "the objective's ratio is to the log-probs that the sampler recorded",
        ),
    )
    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda objective: objective.divergence == "tv" and objective.delta >= 1,
            "objective.delta: no total variation is above 1, so that every token would be kept; set it below 1",
        ),
    )

    divergence: Literal["tv", "kl"] = "tv"
    """The divergence that is bounded: "tv", total variation, or "kl", of the sampler from the policy."""

    delta: float = Field(default=0.2, gt=0)
    """δ: the divergence up to which every token is kept. A kl is about 2 tv² for a token of middling probability, so
    0.05 of it goes about as far as 0.16 of tv."""

    max_ratio: float = Field(default=20.0, ge=1)
    """c: the weight of a token is at most this."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    def describe(self) -> Equation:
        """Return the log-probability of a token, weighted by its advantage and its ratio, within the trust region."""
        legend = {
            "keep_it": f"0 where {_WRITTEN[self.divergence]} > {self.delta:g} and Â_it pushes p away from p_μ, else 1",
            "p, p_μ": "the probability of token t under π_θ and under μ",
            "ρ_it": "π_θ/μ of token t",
            "μ": "the policy that sampled, by its recorded log-probs",
            "sg": "the value without its gradient",
        }
        return Equation(f"keep_it sg(min(ρ_it, {self.max_ratio:g})) Â_it log π_θ", legend)

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where advantages or `rollout_logprobs` are absent.

        Without `old_logprobs` the policy itself has sampled the batch: ρ is 1, and not the rounding of two passes.
        """
        advantages, mask = trained_advantages(stats, batch), batch.loss_mask
        if batch.rollout_logprobs is None:
            raise ValueError("dppo needs the batch's rollout_logprobs, which the sampler records")
        sampler = None if batch.old_logprobs is None else batch.rollout_logprobs
        log_ratio = token_log_ratio(stats.logprobs, sampler, mask).detach()
        logprobs = torch.where(mask, stats.logprobs, 0.0)
        ratio = clamped_ratio(log_ratio)
        divergence = _DIVERGENCE[self.divergence](logprobs.detach(), logprobs.detach() - log_ratio)
        dropped = (divergence > self.delta) & (advantages * log_ratio > 0)
        weight = ratio.clamp(max=self.max_ratio).masked_fill(dropped, 0.0)
        loss = weight * reinforce_loss(logprobs, advantages)
        counted = {"policy/dropped": dropped, "policy/weight_clip": ratio > self.max_ratio}
        return TokenLoss(loss, ratio_stats(log_ratio, loss, counted))
