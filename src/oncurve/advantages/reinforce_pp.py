"""REINFORCE++: the reward to go of each token, whitened over the batch; no critic, and no group needed.

    G_it = Σ_{l>=t} γ^{l-t} r_il           r_it: the reward of token t, the KL included where it is in the reward
    Â_it = (G_it - μ) / sqrt(σ² + 1e-8)    μ, σ over all trained tokens of the batch

The form with a baseline has r_i - mean r of the group in the place of G_it, at every token. Whitening subtracts the
mean over *tokens*, so the advantages of a constant group are not exactly 0 where the lengths of completions differ.

Source: Hu et al., arXiv:2501.03262.
"""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from oncurve.advantages.gae import gae, whiten
from oncurve.advantages.group import OutcomeAdvantage, group_advantages
from oncurve.components import Component, Equation
from oncurve.types import TrainBatch


class ReinforcePPAdvantage(Component):
    """REINFORCE++ (`kind = "reinforce_pp"`): each token's reward to go, whitened over the batch."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """γ, the discount per token."""

    min_valid_completions: ClassVar[int] = 1
    """A completion needs no siblings."""

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return advantages `(B, T)` float64, 0 at untrained tokens, which are skipped. Raises ValueError: no token
        rewards.

        Generalised advantages of λ = 1 without a critic are the rewards to go. All rewards of one value at γ = 1 give
        exactly 0; scaling and shifting them changes nothing at γ = 1, up to the 1e-8.
        """
        if batch.token_rewards is None:
            raise ValueError("the reward to go needs a reward of every token: batch.token_rewards, which collate makes")
        rewards = batch.token_rewards
        to_go, _ = gae(rewards, torch.zeros_like(rewards), batch.loss_mask, self.gamma, lam=1.0)
        return whiten(to_go, batch.loss_mask)

    def describe(self) -> Equation:
        """Return the reward to go."""
        factor = "" if self.gamma == 1 else f"{self.gamma:g}^(l-t) "
        return Equation(
            f"Σ_l>=t {factor}r_il, whitened over the batch's trained tokens",
            {"r_il": "r_i at the last token of completion i, 0 before (scored steps: at their ends)"},
        )


class ReinforcePPBaselineAdvantage(OutcomeAdvantage):
    """REINFORCE++ with a baseline (`kind = "reinforce_pp_baseline"`): the reward minus its group's mean, whitened over
    the batch."""

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return advantages `(B, T)` float64, 0 at untrained tokens. Scaling and shifting all rewards changes
        nothing.
        """
        centred = group_advantages(batch.rewards, batch.valid, batch.group_ids, "none")
        return whiten(centred[:, None].expand(batch.loss_mask.shape), batch.loss_mask)

    def describe(self) -> Equation:
        """Return the reward relative to its group, on the scale of the batch."""
        return Equation("r_i - mean r, the mean of its group of G, whitened over the batch's trained tokens")
