"""The loss that trains a critic: the squared error of its values, clipped around the old ones.

    loss_t = ½ max((V - R)², (V_old + clip(V - V_old, -c, c) - R)²)

aggregated with the same token weights as the objective. Source: PPO's reference implementation, and Engstrom et al.,
arXiv:2005.12729.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from oncurve import ops
from oncurve.types import TokenLoss, TrainBatch


def value_loss(
    values: Float[Tensor, "*shape"],
    old_values: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    clip: float | None,
) -> Float[Tensor, "*shape"]:
    """Return ½ max((V - R)², (V_old + clip(V - V_old, ±c) - R)²), without `clip` ½ (V - R)²; all of one shape."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + ops.clip(values - old_values, -clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


@dataclass(frozen=True)
class ValueLoss:
    """`coef · value_loss` per token, against the batch's `values` and `returns`.

    clip   c; None: no clipping

    Statistics: "critic/loss" (without `coef`), "critic/clip", and "critic/error", |V - R|.
    """

    clip: float | None = 0.2
    coef: float = 1.0

    def __call__(self, values: Float[Tensor, "B T"], batch: TrainBatch) -> TokenLoss:
        """Return `(B, T)` loss and statistics of `values (B, T)`, 0 where `loss_mask` is False.

        Raises ValueError: the batch has no `values` or no `returns`.
        """
        if batch.values is None or batch.returns is None:
            raise ValueError("the value loss needs the batch's values and returns: an advantage of kind gae makes them")
        mask = batch.loss_mask
        now, old, wanted = (
            torch.where(mask, each.to(values.dtype), 0.0) for each in (values, batch.values, batch.returns)
        )
        loss = value_loss(now, old, wanted, self.clip)
        stats = {"critic/loss": loss.detach(), "critic/error": (now.detach() - wanted).abs()}
        if self.clip is not None:
            clipped = value_loss(now.detach(), old, wanted, None) < loss.detach()
            stats["critic/clip"] = clipped.to(values.dtype)
        return TokenLoss(self.coef * loss, stats)
