"""Correction for a sampler that is not the old policy: an importance weight per token on the objective's loss.

The tokens come from μ, the distribution that the sampler recorded; the objective's ratio begins at π_old, the learner's
policy before the step's first update. With log w = log π_old - log μ at the sampled tokens, detached:

    token        w_it = π_old(o_it)/μ(o_it)
    sequence     w_i  = Π_t w_it, for every token of the completion
    geometric    w_i  = (Π_t w_it)^(1/|o_i|)

    truncated    min(w, c)
    masked       w where a <= w <= c, else 0

The loss is w · objective + β KL - α H: the weights multiply the policy term alone, and no denominator changes.
Truncated weights: Ionides, J. Comput. Graph. Stat. 2008, and Espeholt et al., arXiv:1802.01561. The separation of μ, of
π_old, which the ratio is clipped around, and of π_θ: Hilton et al., arXiv:2110.00641.

With log w = [.1, .2, -.1, 1.2]: token weights 1.105, 1.221, .905, 3.320; truncated at 2 the last is 2, masked outside
(.5, 2) it is 0; sequence 4.055, geometric 1.419.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation, check_of, stated
from oncurve.ops import clamped_ratio

Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True)
class ImportanceWeights:
    """Weights `(B, T)`: `ratios` as they are, `used` after a bound. What they hold where nothing is trained is not
    read."""

    ratios: Float[Tensor, "B T"]
    used: Float[Tensor, "B T"]


class Correction(Protocol):
    """The interface that the trainer calls where the sampler is not the old policy. It may state `corrects`; see
    below.
    """

    def __call__(self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> ImportanceWeights:
        """Return weights of `log π_old - log μ`, which is 0 where `loss_mask` is False."""


def corrects(correction: object) -> bool:
    """Return whether it gives any weights. Left out by a component: True."""
    return bool(stated(correction, "corrects", True))


check_correction = check_of("correction", ("__call__",), ("corrects",))


def importance_ratios(
    log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], level: Level
) -> Float[Tensor, "B T"]:
    """Return π_old/μ per token, per completion, or per completion as the geometric mean over its trained tokens. `(B,
    T)`.

    log_ratio   log π_old - log μ; what it holds where `loss_mask` is False is not read, and the result is 1 there at
                token level. Log-ratios are clamped to ±20 before `exp`.
    """
    trained = torch.where(loss_mask, log_ratio, 0.0)
    if level == "token":
        return clamped_ratio(trained)
    total = trained.sum(1, keepdim=True)
    if level == "geometric":
        total = total / loss_mask.sum(1, keepdim=True).clamp(min=1)
    return clamped_ratio(total).expand_as(trained)


class NoCorrection(Component):
    """No correction (`kind = "none"`): completions of older weights have the sampler's log-probs as old ones."""

    corrects: ClassVar[bool] = False

    def __call__(self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> ImportanceWeights:
        """Return weights of 1."""
        return ImportanceWeights(torch.ones_like(log_ratio), torch.ones_like(log_ratio))


class Truncated(Component):
    """Truncated importance weights (`kind = "truncated"`): min(w, c)."""

    level: Level = "token"
    """What a weight belongs to: a "token", a completion ("sequence": the product over its tokens), or a completion by
    its "geometric" mean over tokens."""

    threshold: float = Field(default=2.0, ge=1)
    """c: a larger weight counts as c."""

    def __call__(self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> ImportanceWeights:
        """Return weights of `log π_old - log μ`, at most c."""
        ratios = importance_ratios(log_ratio, loss_mask, self.level)
        return ImportanceWeights(ratios, ratios.clamp(max=self.threshold))

    def describe(self) -> Equation:
        """Return the weight in front of the objective's term."""
        return Equation(f"min(w_it, {self.threshold:g})", _legend(self.level))


class Masked(Component):
    """Masked importance weights (`kind = "masked"`): w where a <= w <= c, else 0."""

    level: Level = "token"
    """As of "truncated"."""

    threshold: float = Field(default=2.0, ge=1)
    """c: a larger weight counts as 0."""

    threshold_lower: float = Field(default=0.5, ge=0, le=1)
    """a: a smaller weight counts as 0."""

    def __call__(self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> ImportanceWeights:
        """Return weights of `log π_old - log μ`, 0 outside a ... c."""
        ratios = importance_ratios(log_ratio, loss_mask, self.level)
        kept = (ratios >= self.threshold_lower) & (ratios <= self.threshold)
        return ImportanceWeights(ratios, torch.where(kept, ratios, 0.0))

    def describe(self) -> Equation:
        """Return the weight in front of the objective's term."""
        where = f"[{self.threshold_lower:g} <= w_it <= {self.threshold:g}]"
        return Equation(f"w_it {where}", {**_legend(self.level), where: "1 where it holds, else 0"})


def _legend(level: Level) -> dict[str, str]:
    of = {
        "token": "at token t",
        "sequence": "of the whole completion",
        "geometric": "of the completion, the geometric mean over its tokens",
    }
    return {"w_it": f"π_old/μ {of[level]}, detached; 1 where the sampler is exact", "μ": "what the sampler recorded"}
