"""How token losses add up to one number: five aggregations, each a weight per token.

The loss is always `Σ_it weight_it · loss_it`; the weights hold the global denominators, computed where the whole
batch is known. So micro-batches, packs and ranks only add, and cannot change loss or gradient.

N is the number of trained tokens, B the number of completions with at least one; |o_i| the trained tokens of
completion i. A completion without any changes nothing, and a batch without any has weights 0. Names as in verl.

    l = [[1, 2, 3], [4]]     token-mean 2.5    token-sum 10    seq-mean-token-sum 5    seq-mean-token-mean 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from oncurve.spec import Component
from oncurve.types import TokenWeights, TrainBatch

__all__ = [
    "AGGREGATION_KINDS",
    "AggregationName",
    "PolicyAndKL",
    "SeqMeanTokenMean",
    "SeqMeanTokenSum",
    "SeqMeanTokenSumNorm",
    "TokenMean",
    "TokenSum",
    "seq_mean_token_mean_weights",
    "seq_mean_token_sum_weights",
    "token_mean_weights",
    "token_sum_weights",
]


def token_sum_weights(loss_mask: Tensor) -> Tensor:
    """1 per trained token: `Σ_it l_it`. `(B, T)` bool to `(B, T)` float64."""
    return loss_mask.to(torch.float64)


def token_mean_weights(loss_mask: Tensor) -> Tensor:
    """1/N: every token of the batch weighs the same (DAPO, arXiv:2503.14476). `(B, T)` bool to `(B, T)` float64."""
    mask = loss_mask.to(torch.float64)
    return mask / mask.sum().clamp(min=1)


def seq_mean_token_sum_weights(loss_mask: Tensor) -> Tensor:
    """1/B: the mean over completions of their sums of token losses. `(B, T)` bool to `(B, T)` float64."""
    mask = loss_mask.to(torch.float64)
    return mask / loss_mask.any(1).sum().clamp(min=1)


def seq_mean_token_mean_weights(loss_mask: Tensor) -> Tensor:
    """1/(B·|o_i|): every completion weighs the same (GRPO as published, arXiv:2402.03300 eq. 3).

    `(B, T)` bool to `(B, T)` float64. A token of a long completion weighs less than one of a short one.
    """
    mask = loss_mask.to(torch.float64)
    return seq_mean_token_sum_weights(loss_mask) / mask.sum(1, keepdim=True).clamp(min=1)


class TokenMean(Component):
    """`token-mean`: see `token_mean_weights`."""

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Token weights `(B, T)` float64, 0 where nothing is trained."""
        return token_mean_weights(batch.loss_mask)


class TokenSum(Component):
    """`token-sum`: see `token_sum_weights`. The gradient grows with the batch; the learning rate has to know."""

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Token weights `(B, T)` float64, 0 where nothing is trained."""
        return token_sum_weights(batch.loss_mask)


class SeqMeanTokenSum(Component):
    """`seq-mean-token-sum`: see `seq_mean_token_sum_weights`. The one that `sequence` objectives are made for."""

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Token weights `(B, T)` float64, 0 where nothing is trained."""
        return seq_mean_token_sum_weights(batch.loss_mask)


class SeqMeanTokenMean(Component):
    """`seq-mean-token-mean`: see `seq_mean_token_mean_weights`."""

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Token weights `(B, T)` float64, 0 where nothing is trained."""
        return seq_mean_token_mean_weights(batch.loss_mask)


class SeqMeanTokenSumNorm(Component):
    """`seq-mean-token-sum-norm`: 1/(B·L), L a constant (Dr.GRPO, arXiv:2503.20783), so that length earns nothing.

    max_length   L in tokens: the most that a completion may have. None: whoever puts the run together sets it to the
                 sampler's limit.
    """

    max_length: int | None = Field(default=None, gt=0, le=10**7)

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Token weights `(B, T)` float64, 0 where nothing is trained. Raises ValueError without a `max_length`."""
        if self.max_length is None:
            raise ValueError("seq-mean-token-sum-norm needs max_length, the most tokens that a completion may have")
        return seq_mean_token_sum_weights(batch.loss_mask) / self.max_length


@dataclass(frozen=True)
class PolicyAndKL:
    """Two aggregations in one: of the policy term with the entropy bonus, and of the KL term.

    `Σ_it w_it (policy loss_it - α H_it) + Σ_it v_it β KL_it`, w of `policy` and v of `kl`, both of the same batch.
    """

    policy: Callable[[TrainBatch], Tensor]
    kl: Callable[[TrainBatch], Tensor]

    def __call__(self, batch: TrainBatch) -> TokenWeights:
        """Both weights, `(B, T)` each."""
        return TokenWeights(self.policy(batch), self.kl(batch))


AggregationName = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
"""The keys of `AGGREGATION_KINDS`."""

AGGREGATION_KINDS: dict[str, type[Component]] = {
    "token-mean": TokenMean,
    "token-sum": TokenSum,
    "seq-mean-token-sum": SeqMeanTokenSum,
    "seq-mean-token-mean": SeqMeanTokenMean,
    "seq-mean-token-sum-norm": SeqMeanTokenSumNorm,
}
