"""The KL as a part of the reward, and what steers its coefficient; nothing where it is a part of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.batching import token_rewards
from oncurve.losses import KLPenalty
from oncurve.metrics import Metrics
from oncurve.ops import masked_mean
from oncurve.types import TrainBatch

__all__ = ["KLControl"]


@dataclass(frozen=True)
class KLControl:
    """`penalty` says where the KL stands, what it weighs and how that is steered. The coefficient is the state's."""

    penalty: KLPenalty

    def penalise(self, batch: TrainBatch, coef: float | None, metrics: Metrics) -> TrainBatch:
        """The batch with -β KL(t) added to `token_rewards (B, T)` and to `rewards (B,)`, β = `coef` (None: the first).

        Every advantage is made of these, so none can leave the KL out. Unchanged where the KL is not in the reward.
        """
        if not self.penalty.in_reward:
            return batch
        used = self.penalty.coef if coef is None else coef
        kl = self.penalty.shares(batch, -1.0)
        metrics.add("kl_coef", used)
        metrics.add("kl", kl, batch.loss_mask)
        if bool(batch.loss_mask.any()):
            metrics.add("kl_controller", self._observed(batch, kl))
        taken = self.penalty.shares(batch, used).to(torch.float64)
        before = token_rewards(batch) if batch.token_rewards is None else batch.token_rewards
        return batch.having(token_rewards=before + taken, rewards=batch.rewards + taken.sum(1))

    def next(self, batch: TrainBatch, coef: float | None) -> float | None:
        """The coefficient of the next step, after a step on `batch`; None where nothing is steered."""
        if not self.penalty.in_reward or self.penalty.target is None:
            return None
        used = self.penalty.coef if coef is None else coef
        if not bool(batch.loss_mask.any()):
            return used
        kl = self._observed(batch, self.penalty.shares(batch, -1.0))
        return self.penalty.steered(used, kl, int(batch.loss_mask.any(1).sum()))

    @staticmethod
    def _observed(batch: TrainBatch, kl: Tensor) -> float:
        """What the coefficient is steered by: the mean over completions of the mean over their trained tokens."""
        trained = batch.loss_mask.any(1)
        return float(masked_mean(kl, batch.loss_mask, dim=1)[trained].mean())
