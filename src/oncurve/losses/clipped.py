"""The clipped surrogate of PPO (arXiv:1707.06347, eq. 7), per token."""

from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.losses.ratios import ratio_stats, token_log_ratio, trained_advantages
from oncurve.ops import clamped_ratio, clip
from oncurve.types import TokenLoss, TokenStats, TrainBatch


def clipped_surrogate(
    ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Return `max(-Â min(ρ, δ), -Â clip(ρ, 1 - ε_low, 1 + ε_high))`, and for Â < 0 at most `-c Â`. Any one shape.

    The clip takes the gradient away once a token has moved as far as one rollout allows *in the direction that
    the advantage pushes*. Against that direction nothing holds: for Â < 0 the loss grows with ρ, unless `dual_clip`
    c (arXiv:1912.09729) bounds the loss or `delta` δ (two-sided GRPO, arXiv:2505.07291) bounds the ratio; beyond
    such a bound the gradient is 0, by choice.
    """
    bounded = ratio if delta is None else clip(ratio, high=delta)
    loss = torch.maximum(-advantages * bounded, -advantages * clip(ratio, 1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


CLIPS = ("policy/clip_low", "policy/clip_high", "policy/clip_dual")
"""What the clipping logs: 0 where the advantage is 0."""


class ClipFields(Component):
    """The clipping that the objectives with a clipped surrogate share."""

    clip_low: float = Field(default=0.2, ge=0)
    """ε_low: the clipped ratio is at least 1 - ε_low; from 1 on there is no lower bound."""

    clip_high: float = Field(default=0.2, ge=0)
    """ε_high: the clipped ratio is at most 1 + ε_high."""

    dual_clip: float | None = Field(default=None, gt=1)
    """c > 1: for a negative advantage the loss is at most -cÂ; none: off."""

    delta: float | None = Field(default=None, gt=1)
    """δ > 1 + ε_high: a larger ratio counts as δ; none: off."""

    @model_validator(mode="after")
    def _outer_bounds_beyond_the_clip(self) -> Self:
        for name, bound in (("dual_clip", self.dual_clip), ("delta", self.delta)):
            if bound is not None and bound <= 1 + self.clip_high:
                raise ValueError(f"{name} ({bound}) must be above 1 + clip_high ({1 + self.clip_high})")
        return self

    needs: ClassVar[frozenset[str]] = frozenset()
    """No token statistics but the log-probs."""

    def _written(self, ratio: str, advantage: str) -> tuple[str, dict[str, str]]:
        """Return the surrogate as `config explain` writes it, and what its `max*` means."""
        bounded = ratio if self.delta is None else f"min({ratio}, {self.delta:g})"
        clipped = f"clip({ratio}, {1 - self.clip_low:g}, {1 + self.clip_high:g})"
        term = f"min({bounded} {advantage}, {clipped} {advantage})"
        if self.dual_clip is None:
            return term, {}
        larger = "the larger where the advantage is negative, else the first"
        return f"max*({term}, {self.dual_clip:g} {advantage})", {"max*": larger}

    def _surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        return clipped_surrogate(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip, self.delta)

    def _stats(
        self, log_ratio: Tensor, advantages: Tensor, loss: Tensor, by_token: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the statistics `(B, T)` of a ratio and its loss, with the share of tokens that each bound clips."""
        ratio = clamped_ratio(log_ratio.detach())
        outer = min(bound for bound in (self.dual_clip, self.delta, torch.inf) if bound is not None)
        clipped = {
            "policy/clip_low": (advantages < 0) & (ratio < 1 - self.clip_low),
            "policy/clip_high": (advantages > 0) & (ratio > 1 + self.clip_high),
            "policy/clip_dual": (advantages < 0) & (ratio > outer),
        }
        return ratio_stats(log_ratio, loss, clipped, by_token)


class Clipped(ClipFields):
    """The clipped surrogate per token (`kind = "clipped"`): PPO's, and GRPO's at token level."""

    zero_gradient_at_zero_advantage: ClassVar[bool] = True
    zero_statistics: ClassVar[tuple[str, ...]] = CLIPS
    reads_reference: ClassVar[bool] = False

    def describe(self) -> Equation:
        """Return the surrogate of a token."""
        term, legend = self._written("ρ_it", "Â_it")
        return Equation(term, {"ρ_it": "π_θ/π_old of token t", **legend})

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no advantages."""
        log_ratio = token_log_ratio(stats.logprobs, batch.old_logprobs, batch.loss_mask)
        advantages = trained_advantages(stats, batch)
        loss = self._surrogate(clamped_ratio(log_ratio), advantages)
        return TokenLoss(loss, self._stats(log_ratio, advantages, loss))
