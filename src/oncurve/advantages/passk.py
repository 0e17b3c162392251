"""Pass@k: a group is as good as its best completion, which alone has an advantage.

    Â_it = (r_1 - r_2) / (std r + eps)    for the best completion, 0 for the others

r_1 and r_2 are the best and the second best reward of the group: how much worse the group would be without its best
completion. Where several are equally good it is 0. Without the division the policy gradient of Σ_i Â_i log π(o_i) is
that of the expected best reward of G completions, which is pass@G for rewards of 0 and 1.

Source: Tang et al., "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning",
arXiv:2503.19595, with leave-one-out baselines; divided by the standard deviation as in GRPO.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oncurve.advantages.group import GroupAdvantage, Scale, group_advantages
from oncurve.components import Equation
from oncurve.ops import segment_count, segment_max
from oncurve.types import TrainBatch


def passk_advantages(
    rewards: Float[Tensor, "B"],
    valid: Bool[Tensor, "B"],
    group_ids: Int[Tensor, "B"],
    scale: Scale = "group",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """By how much the best valid completion of a group exceeds the second best, 0 for all others, `(B,)` float64.

    Arguments, exact zeros and errors as in `group_advantages`, whose difference of the two it is. Example:
    [.2, .5, .9, .4] gives 1.35872783 to the third, [1, 0, 0, 1] gives 0.
    """
    relative = group_advantages(rewards, valid, group_ids, scale, ddof, eps)
    if not rewards.numel():
        return relative
    groups = int(group_ids.max()) + 1
    candidates = torch.where(valid, relative, -torch.inf)
    best = valid & (relative == segment_max(candidates, group_ids, groups)[group_ids])
    alone = best & (segment_count(best, group_ids, groups) == 1)[group_ids]
    second = segment_max(torch.where(best, -torch.inf, candidates), group_ids, groups)[group_ids]
    return torch.where(alone & second.isfinite(), relative - second, 0.0)


class PassKAdvantage(GroupAdvantage):
    """Pass@k (`kind = "passk"`): the fields of `kind = "grpo"`; the best completion of a group alone has an
    advantage."""

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return `passk_advantages` of the batch's rewards, `(B,)` float64."""
        return passk_advantages(batch.rewards, batch.valid, batch.group_ids, self.scale, self.ddof, self.eps)

    def describe(self) -> Equation:
        """Return the distance of the best from the second best."""
        of = "the best and the second best reward of its group of G; 0 for the others"
        if self.scale == "none":
            return Equation("r_1 - r_2 for the best completion", {"r_1, r_2": of})
        over = "of the group" if self.scale == "group" else "of the batch"
        term = f"(r_1 - r_2) / ({self._divisor('r')}) for the best completion, std {over} (ddof {self.ddof})"
        return Equation(term, {"r_1, r_2": of})
