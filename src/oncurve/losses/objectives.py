"""Policy objectives: what makes good completions likelier, as a loss per token `(B, T)` to minimise.

With ρ = π_θ/π_old at the sampled token and advantages Â:

    clipped     max(-Â ρ, -Â clip(ρ, 1 - ε_low, 1 + ε_high))                     PPO, arXiv:1707.06347; GRPO
    sequence    the same with ρ_i = exp(Σ_t log ρ_it), the ratio of the whole completion
    reinforce   -Â log π_θ                                                       no ratio, no clip

Losses are 0, with gradient 0, where `loss_mask` is False, whatever stands there. Where a batch has no
`old_logprobs` (one update per rollout of an exact engine) the old policy is the present one: ρ is 1, its gradient
alive.
"""

from __future__ import annotations

from typing import Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from oncurve.ops import clamped_ratio
from oncurve.spec import Component, misstated
from oncurve.types import Streams, TokenLoss, TrainBatch

__all__ = [
    "OBJECTIVE_KINDS",
    "OBJECTIVE_NEEDS",
    "Clipped",
    "Objective",
    "Reinforce",
    "Sequence",
    "check_objective",
    "clipped_surrogate",
    "reinforce_loss",
    "sequence_log_ratio",
    "token_log_ratio",
]


OBJECTIVE_NEEDS = frozenset({"entropy", "full_kl"})
"""The streams beside the log-probs that an objective can need."""


class Objective(Protocol):
    """What the learner asks of an objective."""

    @property
    def needs(self) -> frozenset[str]:
        """Streams beside the log-probs: a subset of {"entropy", "full_kl"}."""

    def __call__(self, streams: Streams, batch: TrainBatch) -> TokenLoss:
        """The unreduced loss and statistics, `(B, T)`."""


def check_objective(objective: Objective) -> str | None:
    """What is wrong with what an objective states of itself; None: nothing."""
    return misstated(f"{type(objective).__name__}.needs", objective.needs, OBJECTIVE_NEEDS)


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor | None, loss_mask: Tensor) -> Tensor:
    """`log ρ = log π_θ - log π_old` where `loss_mask`, else 0. `(B, T)`, in the dtype of `logprobs`.

    `old_logprobs` None: `log π_θ - sg(log π_θ)`, which is 0 with gradient 1.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs.detach().to(logprobs.dtype)
    return torch.where(loss_mask, logprobs - old, 0.0)


def sequence_log_ratio(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
    """`log ρ_i = Σ_t log ρ_it` over the trained tokens of each completion: `(B, T)` to `(B, 1)`."""
    return torch.where(loss_mask, log_ratio, 0.0).sum(1, keepdim=True)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    delta: float | None = None,
) -> Tensor:
    """`max(-Â min(ρ, δ), -Â clip(ρ, 1 - ε_low, 1 + ε_high))`, and for Â < 0 at most `-c Â`. Any one shape.

    The clip takes the gradient away once a token has moved as far as one rollout allows *in the direction that
    the advantage pushes*. Against that direction nothing holds: for Â < 0 the loss grows with ρ, unless `dual_clip`
    c (arXiv:1912.09729) bounds the loss or `delta` δ (two-sided GRPO, arXiv:2505.07291) bounds the ratio; beyond
    such a bound the gradient is 0, by choice.
    """
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    loss = torch.maximum(-advantages * bounded, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def reinforce_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """`-Â log π_θ` (Williams 1992). Any one shape."""
    return -advantages * logprobs


class _ClipFields(Component):
    """What `clipped` and `sequence` share.

    clip_low, clip_high   ε_low, ε_high: the ratio may go from 1 - ε_low to 1 + ε_high
    dual_clip             c > 1: for a negative advantage the loss is at most -cÂ; None: off
    delta                 δ > 1 + ε_high: the ratio counts as δ at most; None: off
    """

    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.2, ge=0)
    dual_clip: float | None = Field(default=None, gt=1)
    delta: float | None = Field(default=None, gt=1)

    @model_validator(mode="after")
    def _outer_bounds_beyond_the_clip(self) -> Self:
        for name, bound in (("dual_clip", self.dual_clip), ("delta", self.delta)):
            if bound is not None and bound <= 1 + self.clip_high:
                raise ValueError(f"{name} ({bound}) must be above 1 + clip_high ({1 + self.clip_high})")
        return self

    @property
    def needs(self) -> frozenset[str]:
        """No streams but the log-probs."""
        return frozenset()

    def _surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        return clipped_surrogate(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip, self.delta)

    def _stats(self, log_ratio: Tensor, advantages: Tensor, loss: Tensor) -> dict[str, Tensor]:
        """Statistics `(B, T)` of a ratio and its loss, all detached; see their declarations in `metrics`."""
        log_ratio, advantages = log_ratio.detach().expand_as(loss), advantages.detach()
        ratio = clamped_ratio(log_ratio)
        good, bad = advantages > 0, advantages < 0
        outer = min(bound for bound in (self.dual_clip, self.delta, torch.inf) if bound is not None)
        fractions = {
            "clip_fraction_low": bad & (ratio < 1 - self.clip_low),
            "clip_fraction_high": good & (ratio > 1 + self.clip_high),
            "dual_clip_fraction": bad & (ratio > outer),
        }
        return {
            "policy_loss": loss.detach(),
            "ratio": ratio,
            "ratio_max": ratio,
            "approx_kl_old": ratio - 1 - log_ratio,
            **{name: where.to(loss.dtype) for name, where in fractions.items()},
        }


class Clipped(_ClipFields):
    """The clipped surrogate per token (`kind = "clipped"`): PPO's, and GRPO's at token level."""

    def __call__(self, streams: Streams, batch: TrainBatch) -> TokenLoss:
        """`(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        log_ratio = token_log_ratio(streams.logprobs, batch.old_logprobs, batch.loss_mask)
        advantages = _trained_advantages(streams, batch)
        loss = self._surrogate(clamped_ratio(log_ratio), advantages)
        return TokenLoss(loss, self._stats(log_ratio, advantages, loss))


class Sequence(_ClipFields):
    """The clipped surrogate per completion, with the ratio of the whole completion (`kind = "sequence"`).

        J = E[1/G Σ_i min(ρ_i A_i, clip(ρ_i, 1 - ε_low, 1 + ε_high) A_i)],   ρ_i = exp(Σ_t log ρ_it)

    A_i is the mean advantage of the trained tokens: A_i itself for outcome rewards. Each trained token carries
    loss_i/|o_i|, so the aggregation `seq-mean-token-sum` gives the mean over completions of loss_i, while a per-token
    KL adds up to the KL of the completion. Statistics are those of the completion, at each of its tokens.
    """

    def __call__(self, streams: Streams, batch: TrainBatch) -> TokenLoss:
        """`(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        mask = batch.loss_mask
        log_ratio = sequence_log_ratio(token_log_ratio(streams.logprobs, batch.old_logprobs, mask), mask)
        tokens = mask.sum(1, keepdim=True).clamp(min=1)
        advantages = _trained_advantages(streams, batch).sum(1, keepdim=True) / tokens
        loss = torch.where(mask, self._surrogate(clamped_ratio(log_ratio), advantages) / tokens, 0.0)
        return TokenLoss(loss, self._stats(log_ratio, advantages, loss))


class Reinforce(Component):
    """The policy gradient itself (`kind = "reinforce"`): for one update per rollout, on-policy."""

    @property
    def needs(self) -> frozenset[str]:
        """No streams but the log-probs."""
        return frozenset()

    def __call__(self, streams: Streams, batch: TrainBatch) -> TokenLoss:
        """`(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        logprobs = torch.where(batch.loss_mask, streams.logprobs, 0.0)
        loss = reinforce_loss(logprobs, _trained_advantages(streams, batch))
        return TokenLoss(loss, {"policy_loss": loss.detach()})


def _trained_advantages(streams: Streams, batch: TrainBatch) -> Tensor:
    """The batch's advantages where `loss_mask`, else 0, in the dtype of the log-probs."""
    if batch.advantages is None:
        raise ValueError("an objective needs the batch's advantages: batch.with_advantages(advantage(batch)) first")
    return torch.where(batch.loss_mask, batch.advantages.to(streams.logprobs.dtype), 0.0)


OBJECTIVE_KINDS: dict[str, type[Component]] = {"clipped": Clipped, "sequence": Sequence, "reinforce": Reinforce}
