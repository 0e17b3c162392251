"""OPO: the baseline that minimises the variance of the gradient, a mean of rewards weighted by length.

    Â_it = r_i - b,    b = Σ_j |o_j| r_j / Σ_j |o_j|

The optimal baseline weighs each reward by the squared norm of its completion's gradient of log π. OPO takes the
gradients of different tokens as orthogonal and of one size, so that norm grows with the number of tokens.

Source: Hao et al., "On-Policy RL with Optimal Reward Baseline", arXiv:2505.23585.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oncurve.advantages.group import OutcomeAdvantage, constant_groups, group_advantages
from oncurve.components import Equation
from oncurve.ops import segment_sum
from oncurve.types import TrainBatch


def opo_advantages(
    rewards: Float[Tensor, "B"],
    valid: Bool[Tensor, "B"],
    group_ids: Int[Tensor, "B"],
    lengths: Int[Tensor, "B"],
) -> Float[Tensor, "B"]:
    """Return `r_i - Σ_j L_j r_j / Σ_j L_j` over the valid completions of a group, `(B,)` float64.

    rewards (B,)   valid (B,) bool   group_ids (B,) int64
    lengths (B,) int64               L, the trained tokens of each completion

    Exactly 0 where `group_advantages` is, and raises what it raises. A completion without trained tokens does not count
    in the baseline; in a group without any the baseline is the mean. Example: rewards [.2, .5, .9, .4] of lengths
    [1, 2, 3, 4] have the baseline .55.
    """
    centred = group_advantages(rewards, valid, group_ids, "none")
    if not rewards.numel():
        return centred
    groups = int(group_ids.max()) + 1
    weights = torch.where(valid, lengths, 0).to(centred.dtype)
    shares = weights / segment_sum(weights, group_ids, groups)[group_ids].clamp(min=1)
    baseline = segment_sum(shares * centred, group_ids, groups)[group_ids]  # relative to the mean
    differing = valid & ~constant_groups(rewards, valid, group_ids)[group_ids]
    return torch.where(differing, centred - baseline, 0.0)


class OPOAdvantage(OutcomeAdvantage):
    """OPO (`kind = "opo"`): the reward minus the mean reward of its group weighted by length."""

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return `opo_advantages` of the batch's rewards and trained tokens, `(B,)` float64."""
        return opo_advantages(batch.rewards, batch.valid, batch.group_ids, batch.loss_mask.sum(1))

    def describe(self) -> Equation:
        """Return the reward relative to the optimal baseline."""
        return Equation("r_i - Σ_j |o_j| r_j / Σ_j |o_j|, over the completions j of its group of G")
