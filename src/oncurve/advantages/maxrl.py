"""MaxRL: rewards relative to their group's mean, divided by that mean, an approximation of maximum likelihood.

    Â_it = (r_i - mean r) / (mean r + eps)

With p the probability of a right completion and rewards of 0 and 1, the gradient of log p is
Σ_{k>=1} (1-p)^{k-1} ∇p. In expectation, 1/G Σ_i r_i/mean r · ∇log π(o_i) (0 where no completion is right) has the
first G terms of it. The baseline, which an all-wrong group does not have, takes off the last of them, so these
advantages have the first G - 1: the gradient of the expected reward (k = 1) at G = 2, maximum likelihood as G grows.

Source: Tajwar et al., arXiv:2602.02710.
"""

from typing import ClassVar

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from oncurve.advantages.group import OutcomeAdvantage, group_advantages
from oncurve.base.errors import ConfigError
from oncurve.components import Equation
from oncurve.ops import segment_mean
from oncurve.types import TrainBatch


def maxrl_advantages(
    rewards: Float[Tensor, "B"], valid: Bool[Tensor, "B"], group_ids: Int[Tensor, "B"], eps: float = 1e-6
) -> Float[Tensor, "B"]:
    """Return `(r - mean) / (mean + eps)` over the valid completions of a group, `(B,)` float64.

    rewards (B,) >= 0 where valid   valid (B,) bool   group_ids (B,) int64

    Exactly 0 where `group_advantages` is: an all-wrong group as well as an all-right one. Multiplying all rewards by a
    number changes nothing, up to `eps`; adding one does. Example: [1, 0, 0, 1] gives ±1.

    Raises ValueError: what `group_advantages` raises, negative `eps`. Raises ConfigError: a negative reward, whose
    group may have a mean of 0 or below.
    """
    if not eps >= 0:
        raise ValueError(f"eps must be >= 0, got {eps}")
    centred = group_advantages(rewards, valid, group_ids, "none")
    if bool((rewards[valid] < 0).any()):
        raise ConfigError(
            f"advantage.kind: maxrl divides by the mean reward of a group, so rewards must be 0 or more, and one is "
            f'{float(rewards[valid].min()):g}; shift the rewards, or set advantage.kind to "grpo"'
        )
    groups = int(group_ids.max()) + 1 if group_ids.numel() else 0
    mean = segment_mean(rewards.to(centred.dtype), group_ids, groups, valid)[group_ids]
    return centred / (mean + eps).where(centred != 0, 1.0)


class MaxRLAdvantage(OutcomeAdvantage):
    """MaxRL (`kind = "maxrl"`): the reward relative to its group's mean, divided by that mean. Rewards must be 0 or
    more."""

    eps: float = Field(default=1e-6, ge=0)
    """Added to the mean."""

    needs: ClassVar[frozenset[str]] = frozenset({"siblings", "nonnegative"})
    """Other completions of the same prompt, and rewards of 0 or more."""

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return `maxrl_advantages` of the batch's rewards, `(B,)` float64."""
        return maxrl_advantages(batch.rewards, batch.valid, batch.group_ids, self.eps)

    def describe(self) -> Equation:
        """Return the reward relative to the mean."""
        return Equation(f"(r_i - mean r) / (mean r + {self.eps:g}), the mean of its group of G")
