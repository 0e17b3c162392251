"""What holds the policy back: the KL to the reference and the entropy bonus, per token, in the loss.

    loss_it = β · KL_it - α · H_it

aggregated with the same token weights as the objective: the KL as in DeepSeekMath, arXiv:2402.03300, eq. 3, the bonus
as in PPO, arXiv:1707.06347, eq. 9. With `aggregation` the KL term has weights of its own, `kl_weights` of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from oncurve.kl import KL_KINDS, EstimatorName, kl_value
from oncurve.losses.aggregate import AggregationName
from oncurve.losses.value import ValueLoss
from oncurve.spec import Component
from oncurve.types import Streams, TokenLoss, TrainBatch

__all__ = ["KLPenalty", "Regularizer"]


class KLPenalty(Component):
    """Settings of the KL term.

    where       "loss": added to each token's loss; "reward": taken from each token's reward, k1 of the old policy
    estimator   one of `oncurve.kl.KL_KINDS`
    coef        β; at 0 there is no KL term, and no reference is needed
    aggregation  how the KL term of the loss adds up over tokens, a kind of `[aggregation]`; none: as the objective
    target      with where = "reward", the KL per token that β is steered to; none: β stays as it is
    horizon     completions over which it is steered
    """

    where: Literal["loss", "reward"] = "loss"
    estimator: EstimatorName = "k3"
    coef: float = Field(default=0.001, ge=0)
    aggregation: AggregationName | None = None
    target: float | None = Field(default=None, gt=0)
    horizon: float = Field(default=10000.0, gt=0)

    @field_validator("aggregation", mode="before")
    @classmethod
    def _none_has_a_word(cls, value: Any) -> Any:
        return None if value == "none" else value  # TOML has no null, and a preset may have to be undone

    @property
    def loss_coef(self) -> float:
        """β where the KL is a part of the loss, else 0."""
        return self.coef if self.where == "loss" else 0.0

    @property
    def in_reward(self) -> bool:
        """Whether the KL is a part of the reward."""
        return self.where == "reward" and self.coef > 0

    @property
    def needs(self) -> frozenset[str]:
        """Streams beside the log-probs: {"full_kl"} for the exact KL, where it is used at all."""
        return KL_KINDS[self.estimator].needs if self.loss_coef > 0 else frozenset()

    def shares(self, batch: TrainBatch, coef: float) -> Tensor:
        """-β KL(t) of each token `(B, T)`, KL(t) = log π_old(o_t) - log π_ref(o_t), 0 where nothing is trained.

        The old policy is the one that sampled, as the learner scores it where it has, else as the sampler did.
        """
        old = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
        if old is None or batch.ref_logprobs is None:
            raise ValueError("a KL in the reward needs the log-probs of the old policy and of the reference")
        return torch.where(batch.loss_mask, -coef * (old - batch.ref_logprobs), 0.0)

    def steered(self, coef: float, kl: float, completions: int) -> float:
        """The next β: `β · (1 + clip(kl / target - 1, ±0.2) · n / horizon)` (arXiv:1909.08593); without a target β.

        `kl` is the mean over completions of the mean over their tokens, `completions` is n.
        """
        if self.target is None:
            return coef
        return coef * (1.0 + min(max(kl / self.target - 1.0, -0.2), 0.2) * completions / self.horizon)

    @property
    def needs_reference(self) -> bool:
        """Whether the batch must come with `ref_logprobs` (or `ref_hidden`, for the exact KL)."""
        return self.coef > 0


@dataclass(frozen=True)
class Regularizer:
    """`β · KL - α · H` per token. `entropy_coef` is α: positive rewards undecidedness, 0 is off.

    `value`: the loss of values that are read off the policy's own hidden states, added where there are any.

    Statistics: "kl", the estimator's value, where it is in the loss, or in nothing and the batch has reference
    log-probs (a KL in the reward is another estimator's, observed where it is added); "entropy", where the stream is
    there. Statistics alone cost no gradient.
    """

    kl: KLPenalty
    entropy_coef: float = 0.0
    value: ValueLoss | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Streams beside the log-probs: a subset of {"full_kl", "entropy"}."""
        return self.kl.needs | (frozenset({"entropy"}) if self.entropy_coef else frozenset())

    def __call__(self, streams: Streams, batch: TrainBatch) -> TokenLoss:
        """`(B, T)` loss and statistics, 0 where `loss_mask` is False; the KL apart where the batch has `kl_weights`.

        Raises ValueError: the reference's log-probs or a stream in `needs` are absent.
        """
        loss = torch.zeros_like(streams.logprobs)
        stats: dict[str, Tensor] = {}
        kl, apart = self._kl(streams, batch), None
        if kl is not None:
            stats["kl"] = kl.detach()
            if self.kl.loss_coef and batch.kl_weights is not None:
                apart = self.kl.loss_coef * kl
            elif self.kl.loss_coef:
                loss = loss + self.kl.loss_coef * kl
        if streams.entropy is not None:
            entropy = torch.where(batch.loss_mask, streams.entropy, 0.0)
            loss = loss - self.entropy_coef * entropy if self.entropy_coef else loss
            stats["entropy"] = entropy.detach()
        elif self.entropy_coef:
            raise ValueError("the entropy bonus needs the stream entropy, which is absent")
        held = TokenLoss(loss, stats, apart)
        if self.value is None or streams.values is None:
            return held
        return held + self.value(streams.values, batch)

    def _kl(self, streams: Streams, batch: TrainBatch) -> Tensor | None:
        """The estimator's value per token, 0 where `loss_mask` is False; None where neither needed nor to be had."""
        if self.kl.in_reward:
            return None
        exact = "full_kl" in KL_KINDS[self.kl.estimator].needs
        if not self.kl.coef and (streams.full_kl if exact else batch.ref_logprobs) is None:
            return None
        masked = _masker(batch.loss_mask, streams.logprobs.dtype)
        return kl_value(
            self.kl.estimator,
            torch.where(batch.loss_mask, streams.logprobs, 0.0),
            masked(batch.ref_logprobs),
            masked(streams.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs),
            None if streams.full_kl is None else torch.where(batch.loss_mask, streams.full_kl, 0.0),
        )


def _masker(loss_mask: Tensor, dtype: torch.dtype) -> Callable[[Tensor | None], Tensor | None]:
    """A function that zeroes a stream where nothing is trained, before anything can overflow there."""
    return lambda stream: None if stream is None else torch.where(loss_mask, stream.to(dtype), 0.0)
