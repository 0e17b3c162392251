"""KL regularization towards the reference and the entropy bonus, per token, in the loss.

    loss_it = β · KL_it - α · H_it

aggregated with the same token weights as the objective: the KL as in DeepSeekMath, arXiv:2402.03300, eq. 3, the bonus
as in PPO, arXiv:1707.06347, eq. 9. With `aggregation` a term has weights of its own, `apart_weights` of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from oncurve.components import Component
from oncurve.kl import Estimator, check_estimator, estimator_named, kl_value
from oncurve.losses.kinds import Apart
from oncurve.losses.value import ValueLoss
from oncurve.types import TokenLoss, TokenStats, TrainBatch


class KLPenalty(Component):
    """The per-token KL penalty."""

    where: Literal["loss", "reward"] = "loss"
    """Where the penalty counts. "loss": added to each token's loss; "reward": subtracted from each token's reward, as
    k1 of the old policy."""

    estimator: str = "k3"
    """How the KL is estimated in the loss: one of `KL_KINDS`, or an `oncurve.kl.Estimator` by path."""

    coef: float = Field(default=0.001, ge=0)
    """β; at 0 there is no KL term, and no reference is needed."""

    aggregation: Apart = None
    """How the KL term of the loss adds up over tokens, a kind of `[aggregation]`; none: as the objective does."""

    target: float | None = Field(default=None, gt=0)
    """With where = "reward", the KL per token that β is adapted to; none: β stays constant."""

    horizon: float = Field(default=10000.0, gt=0)
    """Completions over which β is adapted."""

    @field_validator("estimator")
    @classmethod
    def _is_an_estimator(cls, name: str) -> str:
        problem = check_estimator(name)
        if problem is not None:
            raise ValueError(problem)
        return name

    @property
    def chosen(self) -> Estimator:
        """The estimator that `estimator` names."""
        return estimator_named(self.estimator)

    @property
    def loss_coef(self) -> float:
        """β where the KL is a part of the loss, else 0."""
        return self.coef if self.where == "loss" else 0.0

    @property
    def in_reward(self) -> bool:
        """Return whether the KL is a part of the reward."""
        return self.where == "reward" and self.coef > 0

    @property
    def needs(self) -> frozenset[str]:
        """Token statistics next to the log-probs: {"full_kl"} for the exact KL, where it is used at all."""
        return self.chosen.needs if self.loss_coef > 0 else frozenset()

    def kl_penalty(self, batch: TrainBatch, coef: float) -> Float[Tensor, "B T"]:
        """Return -β KL(t) of each token `(B, T)`, KL(t) = log π_old(o_t) - log π_ref(o_t), 0 where nothing is trained.

        The old policy is the one that sampled, as the learner scores it where it has, else as the sampler did.
        """
        old = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
        if old is None or batch.ref_logprobs is None:
            raise ValueError("a KL in the reward needs the log-probs of the old policy and of the reference")
        return torch.where(batch.loss_mask, -coef * (old - batch.ref_logprobs), 0.0)

    def steered(self, coef: float, kl: float, completions: int) -> float:
        """Return the next β: `β · (1 + clip(kl / target - 1, ±0.2) · n / horizon)` (arXiv:1909.08593); without a target
        β.

        `kl` is the mean over completions of the mean over their tokens, `completions` is n.
        """
        if self.target is None:
            return coef
        return coef * (1.0 + min(max(kl / self.target - 1.0, -0.2), 0.2) * completions / self.horizon)

    @property
    def needs_reference(self) -> bool:
        """Return whether the batch must come with `ref_logprobs` (or `ref_hidden`, for the exact KL)."""
        return self.coef > 0


@dataclass(frozen=True)
class Regularizer:
    """`β · KL - α · H` per token. `entropy_coef` is α: a positive one raises the entropy, 0 is off.

    `steered`: α changes from step to step, and is the batch's `entropy_coef`.

    `entropy_apart`: the batch's `apart_weights` weigh the entropy.

    `value`: the loss of values that are read off the policy's own hidden states, added where there are any.

    Statistics: "policy/kl", the estimator's value, where it is in the loss, or in nothing and the batch has reference
    log-probs (a KL in the reward is another estimator's, observed where it is added); "policy/entropy", where the
    entropy is there. Statistics alone cost no gradient.
    """

    kl: KLPenalty
    entropy_coef: float = 0.0
    value: ValueLoss | None = None
    steered: bool = False
    entropy_apart: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """Token statistics next to the log-probs: a subset of {"full_kl", "entropy"}."""
        return self.kl.needs | (frozenset({"entropy"}) if self.rewards_entropy else frozenset())

    @property
    def rewards_entropy(self) -> bool:
        """Return whether there is, or may be, an entropy bonus."""
        return self.steered or self.entropy_coef != 0

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics, 0 where `loss_mask` is False; what has an aggregation of its
        own apart.

        Raises ValueError: the reference's log-probs or a token statistic in `needs` are absent.
        """
        loss = torch.zeros_like(stats.logprobs)
        observed: dict[str, Tensor] = {}
        kl, apart = self._kl(stats, batch), None
        if kl is not None:
            observed["policy/kl"] = kl.detach()
            if self.kl.loss_coef and self.kl.aggregation is not None:
                apart = self.kl.loss_coef * kl
            elif self.kl.loss_coef:
                loss = loss + self.kl.loss_coef * kl
        if stats.entropy is not None:
            entropy = torch.where(batch.loss_mask, stats.entropy, 0.0)
            if self.rewards_entropy:
                bonus = self._entropy_coef(batch, loss.dtype) * entropy
                if self.entropy_apart:
                    apart = -bonus if apart is None else apart - bonus
                else:
                    loss = loss - bonus
            observed["policy/entropy"] = entropy.detach()
        elif self.rewards_entropy:
            raise ValueError("the entropy bonus needs the statistic entropy, which is absent")
        held = TokenLoss(loss, observed, apart)
        if self.value is None or stats.values is None:
            return held
        return held + self.value(stats.values, batch)

    def _entropy_coef(self, batch: TrainBatch, dtype: torch.dtype) -> Tensor | float:
        """Return α, or `(B, 1)` where the batch has it. Raises ValueError: it is steered, and the batch does not have
        it.
        """
        if not self.steered:
            return self.entropy_coef
        if batch.entropy_coef is None:
            raise ValueError("a steered entropy bonus needs the batch's entropy_coef")
        return batch.entropy_coef[:, None].to(dtype)

    def _kl(self, stats: TokenStats, batch: TrainBatch) -> Tensor | None:
        """Return the estimator's value per token, 0 where `loss_mask` is False; None where neither needed nor to be
        had.
        """
        if self.kl.in_reward:
            return None
        exact = "full_kl" in self.kl.chosen.needs
        if not self.kl.coef and (stats.full_kl if exact else batch.ref_logprobs) is None:
            return None
        masked = _masker(batch.loss_mask, stats.logprobs.dtype)
        return kl_value(
            self.kl.estimator,
            torch.where(batch.loss_mask, stats.logprobs, 0.0),
            masked(batch.ref_logprobs),
            masked(stats.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs),
            None if stats.full_kl is None else torch.where(batch.loss_mask, stats.full_kl, 0.0),
        )


def _masker(loss_mask: Tensor, dtype: torch.dtype) -> Callable[[Tensor | None], Tensor | None]:
    """Return a function that zeroes a tensor where nothing is trained, before anything can overflow there."""
    return lambda values: None if values is None else torch.where(loss_mask, values.to(dtype), 0.0)
