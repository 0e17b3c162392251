"""REINFORCE leave-one-out: the baseline of a completion is the mean reward of the others of its group.

    Â_it = r_i - 1/(G-1) Σ_{j≠i} r_j = G/(G-1) · (r_i - mean r)

The baseline does not depend on completion i, so the policy gradient is unbiased. Source: Ahmadian et al.,
arXiv:2402.14740; the estimator: Kool et al. 2019.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from oncurve.advantages.group import OutcomeAdvantage, group_advantages
from oncurve.components import Equation
from oncurve.ops import segment_count
from oncurve.types import TrainBatch


def rloo_advantages(
    rewards: Float[Tensor, "B"], valid: Bool[Tensor, "B"], group_ids: Int[Tensor, "B"]
) -> Float[Tensor, "B"]:
    """Return each completion's reward minus the mean of the other valid ones of its group, `(B,)` float64.

    rewards (B,)   valid (B,) bool   group_ids (B,) int64

    Exactly 0 where `group_advantages` is, and raises what it raises. Example: [1, 0, 0, 1] gives ±2/3.
    """
    centred = group_advantages(rewards, valid, group_ids, "none")
    groups = int(group_ids.max()) + 1 if group_ids.numel() else 0
    count = segment_count(valid, group_ids, groups)[group_ids].to(centred.dtype)
    return centred * count / (count - 1).clamp(min=1)


class RLOOAdvantage(OutcomeAdvantage):
    """REINFORCE leave-one-out (`kind = "rloo"`): the reward minus the mean reward of the other completions."""

    def per_completion(self, batch: TrainBatch) -> Float[Tensor, "B"]:
        """Return `rloo_advantages` of the batch's rewards, `(B,)` float64."""
        return rloo_advantages(batch.rewards, batch.valid, batch.group_ids)

    def describe(self) -> Equation:
        """Return the reward relative to the others."""
        return Equation("r_i - the mean of the other G - 1 rewards of its group")
