"""Filters of the policy term's tokens: by high entropy, and by how far off-policy their completion is.

    top entropy   a token counts iff its entropy under the old policy is among the highest share of the step's batch
                  (Wang et al., arXiv:2506.01939)
    off-policy    a token counts unless Â_it < 0 and 1/|o_i| Σ_t (log μ - log π_θ) > δ, with μ the sampler's policy and
                  π_θ that of the update, detached (DeepSeek-V3.2, arXiv:2512.02556)

KL, entropy bonus and value loss count every trained token, and no denominator changes.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oncurve.losses.objectives import Objective, objective_loss, zero_gradient_at_zero_advantage, zero_statistics
from oncurve.types import TokenLoss, TokenStats, TrainBatch

SAME_ENTROPY = 1e-4
"""Nats: above the rounding of float32, far below the differences between tokens."""


def top_entropy(entropy: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], share: float) -> Bool[Tensor, "B T"]:
    """Return the `share` of the trained tokens that have the highest entropy, `round(share · N)` and at least one. `(B,
    T)`.

    Tokens as high as the last of them, up to 1e-4 nats, are all in it: completions of one prompt have the same first
    distribution, and neither their order nor rounding may decide between them. Entropies of [1, 4, 2, 3] and a share of
    0.5: the second and the fourth token.
    """
    trained = entropy[loss_mask]
    if not trained.numel():
        return loss_mask
    count = min(max(round(share * trained.numel()), 1), trained.numel())
    lowest = trained.kthvalue(trained.numel() - count + 1).values
    return loss_mask & (entropy >= lowest - SAME_ENTROPY)


def off_policy(
    logprobs: Float[Tensor, "B T"],
    rollout_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    threshold: float,
) -> Bool[Tensor, "B T"]:
    """Return tokens with Â < 0 of completions with `1/|o_i| Σ_t (log μ - log π_θ) > δ`, over their trained tokens. `(B,
    T)`.

    log μ = [-1, -1], log π_θ = [-1.5, -1.7] and Â < 0: the mean is 0.6, so that both are off-policy at δ = 0.5.
    """
    gap = torch.where(loss_mask, rollout_logprobs - logprobs.detach(), 0.0)
    mean = gap.sum(1, keepdim=True) / loss_mask.sum(1, keepdim=True).clamp(min=1)
    return loss_mask & (advantages < 0) & (mean > threshold)


@dataclass(frozen=True)
class WithoutOffPolicy:
    """An objective that does not count the tokens which are `off_policy` at the policy of the update.

    threshold   δ, in nats per token

    Statistic: "filter/off_policy", 1 at these tokens.
    """

    objective: Objective
    threshold: float

    @property
    def zero_statistics(self) -> tuple[str, ...]:
        """The statistics of the objective, and those of the filter."""
        return (*zero_statistics(self.objective), "filter/off_policy")

    @property
    def needs(self) -> frozenset[str]:
        """The needs of the objective."""
        return self.objective.needs

    @property
    def zero_gradient_at_zero_advantage(self) -> bool:
        """The statement of the objective."""
        return zero_gradient_at_zero_advantage(self.objective)

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics. Raises ValueError where the batch has no log-probs of its sampler."""
        found = objective_loss(self.objective, stats, batch.having(policy_weights=None))
        if batch.rollout_logprobs is None or batch.advantages is None:
            raise ValueError("the off-policy mask needs the sampler's log-probs and advantages: batch.rollout_logprobs")
        where = off_policy(stats.logprobs, batch.rollout_logprobs, batch.advantages, batch.loss_mask, self.threshold)
        dropped = where.to(found.loss.dtype)
        loss = torch.where(where, 0.0, found.loss)
        return TokenLoss(loss, {**found.stats, "filter/off_policy": dropped}, found.apart)
