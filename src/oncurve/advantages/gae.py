"""Generalised advantage estimation over a learned value function: the advantage of PPO.

    r_t   = -β KL(t), plus the completion's reward at its last token (or each step's at its end)
    δ_t   = r_t + γ V_{t+1} - V_t          V = 0 after the last token; for a truncated completion its last value
    Â_t   = Σ_l (γλ)^l δ_{t+l}             R_t = Â_t + V_t, what the values are trained towards

`V_t = V(q, o_<t)`, read at the position before token t. Tokens that are not trained (a tool's) are skipped: value and
advantage are carried through them, as if they were not there. Source: arXiv:1506.02438; PPO, arXiv:1707.06347.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.types import AdvantagesAndReturns, TrainBatch


def gae(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    gamma: float = 1.0,
    lam: float = 0.95,
    beyond: Float[Tensor, "B"] | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return advantages and returns, `(B, T)` float64 each, 0 where `mask` is False.

    rewards (B, T)   of each token; one at a skipped token counts at the trained token before it
    values  (B, T)   V_t, before whose token it is read
    mask    (B, T) bool
    gamma, lam       γ and λ, in 0..1
    beyond  (B,)     the value after the last token; None: 0

    With γ = λ = 1: Â_t = Σ_{l >= t} r_l - V_t. Raises ValueError for shapes that differ.
    """
    if not rewards.shape == values.shape == mask.shape or rewards.ndim != 2:
        shapes = [tuple(x.shape) for x in (rewards, values, mask)]
        raise ValueError(f"rewards, values and mask must be of one shape (B, T), got {shapes}")
    rewards, values = rewards.to(torch.float64), values.to(torch.float64)
    advantages = torch.zeros_like(rewards)
    carried = torch.zeros_like(rewards[:, :1]).squeeze(1)  # rewards of skipped tokens, on their way to a trained one
    advantage = torch.zeros_like(carried)
    value = torch.zeros_like(carried) if beyond is None else beyond.to(torch.float64)
    for t in reversed(range(rewards.shape[1])):
        trained, reward = mask[:, t], rewards[:, t] + carried
        found = reward + gamma * value - values[:, t] + gamma * lam * advantage
        advantages[:, t] = torch.where(trained, found, 0.0)
        advantage, value = torch.where(trained, found, advantage), torch.where(trained, values[:, t], value)
        carried = torch.where(trained, 0.0, reward)
    return advantages, torch.where(mask, advantages + values, 0.0)


def whiten(x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `(x - μ) / sqrt(σ² + 1e-8)` over the places of `mask`, σ² with Bessel's correction; 0 elsewhere.

    Fewer than two places: 0. All of one value: exactly 0.
    """
    chosen = x[mask]
    if chosen.numel() < 2 or bool(chosen.max() == chosen.min()):
        return torch.zeros_like(x)
    centred = chosen - chosen.mean()
    scale = (centred.square().sum() / (chosen.numel() - 1) + 1e-8).rsqrt()
    return torch.zeros_like(x).masked_scatter(mask, centred * scale)


class GAEAdvantage(Component):
    """Generalised advantage estimation (`kind = "gae"`), which needs a `[critic]`."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """γ, the discount per token."""

    lam: float = Field(default=0.95, ge=0, le=1)
    """λ: 1 relies on the rewards alone, 0 on the critic alone."""

    scale: Literal["batch", "none"] = "batch"
    """How advantages are scaled. "batch": whitened, to mean 0 and standard deviation 1 over the batch's trained tokens;
    "none": as they are."""

    bootstrap: bool = False
    """Whether a truncated completion ends with the critic's value (the bootstrap value) instead of 0."""

    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    """A critic's values."""

    min_valid_completions: ClassVar[int] = 1
    """A completion needs no siblings."""

    def __call__(self, batch: TrainBatch) -> AdvantagesAndReturns:
        """Return advantages and returns `(B, T)`. Raises ValueError where the batch has no values or no token
        rewards.
        """
        if batch.values is None or batch.token_rewards is None:
            raise ValueError("generalised advantages need a reward and a critic's value of every token")
        beyond = None
        if self.bootstrap:
            if batch.bootstrap_values is None or batch.truncated is None:
                raise ValueError(
                    "bootstrapping needs the values after the last tokens, and which completions were truncated"
                )
            beyond = torch.where(batch.truncated, batch.bootstrap_values.to(torch.float64), 0.0)
        raw, returns = gae(batch.token_rewards, batch.values, batch.loss_mask, self.gamma, self.lam, beyond)
        return AdvantagesAndReturns(whiten(raw, batch.loss_mask) if self.scale == "batch" else raw, returns)

    def describe(self) -> Equation:
        """Return the discounted sum of temporal differences."""
        whitened = ", whitened over the batch" if self.scale == "batch" else ""
        end = "the critic's value after a completion that was cut off" if self.bootstrap else "0 after the last token"
        return Equation(
            f"Σ_l {self.gamma * self.lam:g}^l δ_i,t+l{whitened}",
            {
                "δ_it": f"r_it + {self.gamma:g} V_i,t+1 - V_it; V is {end}",
                "r_it": "r_i at the last token of completion i, 0 before (scored steps: at their ends)",
                "V_it": "the critic's value of the text before token t",
            },
        )
