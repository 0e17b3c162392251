"""The KL as a part of the reward, and what steers its coefficient; nothing where it is a part of the loss."""

from __future__ import annotations

from dataclasses import dataclass

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
        """The batch with `kl_rewards (B, T)` at coefficient `coef` (None: the run begins); unchanged without them."""
        if not self._in_reward:
            return batch
        used = self.penalty.coef if coef is None else coef
        metrics.add("kl_coef", used)
        return batch.having(kl_rewards=self.penalty.shares(batch, used))

    def next(self, batch: TrainBatch, coef: float | None) -> float | None:
        """The coefficient of the next step, after a step on `batch`; None where nothing is steered."""
        if not self._in_reward or self.penalty.target is None:
            return None
        used = self.penalty.coef if coef is None else coef
        kl = masked_mean(self.penalty.shares(batch, -1.0), batch.loss_mask, dim=1)
        trained = batch.loss_mask.any(1)
        if not bool(trained.any()):
            return used
        return self.penalty.steered(used, float(kl[trained].mean()), int(trained.sum()))

    @property
    def _in_reward(self) -> bool:
        return self.penalty.where == "reward" and self.penalty.coef > 0
