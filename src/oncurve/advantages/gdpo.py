"""GDPO: several rewards, each normalised in its group by itself, so that none drowns the others.

    z_ik = (r_ik - mean r_k) / (std r_k + eps)    over the completions of the group to which reward k applies
    s_i  = Σ_k w_k z_ik
    Â_it = s_i / (std_batch s + eps),  or s whitened over the trained tokens of the batch, as verl has it

The sum of weighted rewards, which GRPO normalises, gives completions with different rewards one advantage where their
sums are equal. The paper subtracts the mean of s over the batch, too: it is 0 by construction, and not subtracting its
rounding keeps constant groups at exactly 0.

Source: Liu et al., "GDPO: Group reward-Decoupled Normalization Policy Optimization", arXiv:2601.05242.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from oncurve.advantages.gae import whiten
from oncurve.advantages.group import OutcomeAdvantage, group_advantages
from oncurve.components import Equation
from oncurve.ops import segment_count
from oncurve.types import TrainBatch


def decoupled_sums(
    components: Float[Tensor, "B K"],
    weights: Float[Tensor, "B K"],
    valid: Bool[Tensor, "B"],
    group_ids: Int[Tensor, "B"],
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """Return `s_i = Σ_k w_k (r_ik - mean_group r_k) / (std_group r_k + eps)`, `(B,)` float64.

    components (B, K)      the values of each reward; NaN: it does not apply to the completion, and adds 0
    weights    (B, K)      w_k
    valid (B,) bool        group_ids (B,) int64

    A reward that is the same for all completions of a group adds exactly 0 there. Raises ValueError: shapes that
    differ, and what `group_advantages` raises.
    """
    if components.shape != weights.shape or components.ndim != 2:
        shapes = [tuple(x.shape) for x in (components, weights)]
        raise ValueError(f"components and weights must be of one shape (B, K), got {shapes}")
    total = torch.zeros(len(components), dtype=torch.float64, device=components.device)
    for values, weight in zip(components.unbind(1), weights.unbind(1), strict=True):
        applies = valid & ~values.isnan()
        total = total + weight * group_advantages(values, applies, group_ids, "group", ddof, eps)
    return total


class GDPOAdvantage(OutcomeAdvantage):
    """GDPO (`kind = "gdpo"`): every reward is normalised in its group by itself; their weighted sum, on the scale of
    the batch, is the advantage."""

    ddof: Literal[0, 1] = 1
    """1: sample standard deviation (Bessel's correction); 0: population."""

    eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviations of the groups and of the batch."""

    scale: Literal["completions", "tokens"] = "completions"
    """What the sums are put on the scale of: their standard deviation over "completions", or, whitened, mean and
    standard deviation over the trained "tokens". Whitened advantages of a constant group are not 0."""

    needs: ClassVar[frozenset[str]] = frozenset({"siblings", "components"})
    """Other completions of the same prompt, and the values of the single rewards."""

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return the advantages `(B, T)` float64, which scaling and shifting a reward do not change, up to `eps`.

        Raises ValueError: the batch does not have the single rewards.
        """
        if batch.component_rewards is None or batch.component_weights is None:
            raise ValueError("gdpo needs the values and weights of the single rewards, which their scores record")
        sums = decoupled_sums(
            batch.component_rewards, batch.component_weights, batch.valid, batch.group_ids, self.ddof, self.eps
        )
        if self.scale == "tokens":
            return whiten(sums[:, None].expand(batch.loss_mask.shape), batch.loss_mask)
        siblings = segment_count(batch.valid, batch.group_ids, len(batch.prompts))[batch.group_ids]
        count = int((batch.valid & (siblings > 1)).sum())  # a group of one valid completion is in no statistic
        std = (sums.square().sum() / max(count - self.ddof, 1)).sqrt()
        return (sums / torch.where(sums != 0, std + self.eps, 1.0))[:, None] * batch.existing()

    def describe(self) -> Equation:
        """Return the weighted sum of normalised rewards."""
        by = f"std + {self.eps:g}" if self.eps else "std"
        z = f"(r_ik - mean r_k) / ({by}), mean and std of the values r_ik of reward k in its group (ddof {self.ddof})"
        over = "the batch" if self.scale == "completions" else "its trained tokens"
        sums = f"Σ_k w_k z_ik over the rewards k, w_k their weights; std s is over {over}"
        term = f"s_i / ({by.replace('std', 'std s')})" if self.scale == "completions" else "(s_i - mean s) / std s"
        return Equation(term, {"s_i": sums, "z_ik": z})
