"""Aggregations of token losses to one number: five, each a weight per token.

The loss is always `Σ_it weight_it · loss_it`; the weights hold the global denominators, computed where the whole
batch is known. So micro-batches, packs and ranks only add, and cannot change loss or gradient.

N is the number of trained tokens, B the number of completions with at least one; |o_i| the trained tokens of
completion i. A completion without any changes nothing, and a batch without any has weights 0. Names as in verl.

    l = [[1, 2, 3], [4]]     token-mean 2.5    token-sum 10    seq-mean-token-sum 5    seq-mean-token-mean 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from oncurve.base.errors import ConfigError
from oncurve.components import Component, Equation, check_of
from oncurve.types import TokenWeights, TrainBatch

Aggregation = Callable[[TrainBatch], Tensor]
"""The token weights `(B, T)` of a batch, float64, 0 where `loss_mask` is False. It sees masks, no losses."""


def resolved(aggregation: Aggregation, config: Any) -> Aggregation:
    """Return the aggregation with the constants that it takes from elsewhere in the run's `RunConfig`.

    That is its `resolved(config)`. Left out by a component: it has no such constants.
    """
    take = getattr(aggregation, "resolved", None)
    found: Aggregation = aggregation if take is None else take(config)
    if not callable(found):
        raise ConfigError(f"aggregation.kind: {type(aggregation).__name__}.resolved(config) returned {found!r}")
    return found


def grows_with_batch(aggregation: object) -> bool:
    """Return whether the sum, and with it the gradient, grows with the batch. Left out by a component: False."""
    return bool(getattr(aggregation, "grows_with_batch", False))


check_aggregation = check_of("aggregation", ("__call__",), ("grows_with_batch",))


def token_sum_weights(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return 1 per trained token: `Σ_it l_it`. `(B, T)` bool to `(B, T)` float64."""
    return loss_mask.to(torch.float64)


def token_mean_weights(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return 1/N: every token of the batch weighs the same (DAPO, arXiv:2503.14476). `(B, T)` bool to `(B, T)`
    float64.
    """
    mask = loss_mask.to(torch.float64)
    return mask / mask.sum().clamp(min=1)


def seq_mean_token_sum_weights(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return 1/B: the mean over completions of their sums of token losses. `(B, T)` bool to `(B, T)` float64."""
    mask = loss_mask.to(torch.float64)
    return mask / loss_mask.any(1).sum().clamp(min=1)


def seq_mean_token_mean_weights(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return 1/(B·|o_i|): every completion weighs the same (GRPO as published, arXiv:2402.03300 eq. 3).

    `(B, T)` bool to `(B, T)` float64. A token of a long completion weighs less than one of a short one.
    """
    mask = loss_mask.to(torch.float64)
    return seq_mean_token_sum_weights(loss_mask) / mask.sum(1, keepdim=True).clamp(min=1)


class TokenMean(Component):
    """`token-mean`: every trained token of the batch has the same weight, 1 over their number."""

    def describe(self) -> Equation:
        """Return the sums."""
        return Equation("1/N Σ_i Σ_t")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return token weights `(B, T)` float64, 0 where nothing is trained."""
        return token_mean_weights(batch.loss_mask)


class TokenSum(Component):
    """`token-sum`: every trained token has weight 1. The gradient grows with the batch; choose the learning rate for
    it."""

    grows_with_batch: ClassVar[bool] = True

    def describe(self) -> Equation:
        """Return the sums."""
        return Equation("Σ_i Σ_t")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return token weights `(B, T)` float64, 0 where nothing is trained."""
        return token_sum_weights(batch.loss_mask)


class SeqMeanTokenSum(Component):
    """`seq-mean-token-sum`: the mean over completions of the sum over tokens, as `sequence_product` needs it."""

    def describe(self) -> Equation:
        """Return the sums."""
        return Equation("1/B Σ_i Σ_t")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return token weights `(B, T)` float64, 0 where nothing is trained."""
        return seq_mean_token_sum_weights(batch.loss_mask)


class SeqMeanTokenMean(Component):
    """`seq-mean-token-mean`: the mean over completions of the mean over tokens (GRPO's 1/G Σ 1/|o_i| Σ)."""

    def describe(self) -> Equation:
        """Return the sums."""
        return Equation("1/B Σ_i 1/|o_i| Σ_t")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return token weights `(B, T)` float64, 0 where nothing is trained."""
        return seq_mean_token_mean_weights(batch.loss_mask)


class SeqMeanTokenSumNorm(Component):
    """`seq-mean-token-sum-norm`: 1/(B·L) with a constant L (Dr.GRPO, arXiv:2503.20783): no bias of length."""

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """L in tokens: the most that a completion may have; none: `rollout.max_new_tokens`."""

    def resolved(self, config: Any) -> SeqMeanTokenSumNorm:
        """With `rollout.max_new_tokens` in the place of a `max_length` that was left out."""
        if self.max_length is not None:
            return self
        return self.model_copy(update={"max_length": config.rollout.max_new_tokens})

    def describe(self) -> Equation:
        """Return the sums."""
        return Equation("1/(B·L) Σ_i Σ_t" if self.max_length is None else f"1/(B·{self.max_length:,}) Σ_i Σ_t")

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return token weights `(B, T)` float64, 0 where nothing is trained. Raises ValueError without a
        `max_length`.
        """
        if self.max_length is None:
            raise ValueError("seq-mean-token-sum-norm needs max_length, the most tokens that a completion may have")
        return seq_mean_token_sum_weights(batch.loss_mask) / self.max_length


@dataclass(frozen=True)
class PolicyAndApart:
    """Two aggregations in one: of the policy term, and of the KL term, the entropy bonus or both.

    `Σ_it w_it (policy loss_it - α H_it) + Σ_it v_it β KL_it`, w of `policy` and v of `apart`, both of the same batch.
    """

    policy: Aggregation
    apart: Aggregation

    def __call__(self, batch: TrainBatch) -> TokenWeights:
        """Return both weights, `(B, T)` each."""
        return TokenWeights(self.policy(batch), self.apart(batch))
