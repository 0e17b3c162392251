"""Coefficients that change from step to step: of a KL in the reward, and of the entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from oncurve.losses import EntropyBonus, KLPenalty
from oncurve.metrics import Metrics
from oncurve.ops import masked_mean
from oncurve.trainer.state import TrainerState
from oncurve.types import TrainBatch


@dataclass(frozen=True)
class KLControl:
    """`penalty` has the place of the KL, its coefficient and target. The coefficient in use is in the state."""

    penalty: KLPenalty

    def add_kl_to_rewards(self, batch: TrainBatch, coef: float | None, metrics: Metrics) -> TrainBatch:
        """Return the batch with -β KL(t) added to `token_rewards (B, T)` and to `rewards (B,)`, β = `coef` (None: the
        first).

        Every advantage is made of these, so none can leave the KL out. Unchanged where the KL is not in the reward.

        Raises ValueError: the batch has no `token_rewards`, or not the log-probs of old policy and reference.
        """
        if not self.penalty.in_reward:
            return batch
        if batch.token_rewards is None:
            raise ValueError("a KL in the reward is added to the batch's token_rewards, which collate makes")
        used = self.penalty.coef if coef is None else coef
        kl = self.penalty.kl_penalty(batch, -1.0)
        metrics.add("policy/kl_coef", used)
        metrics.add("policy/kl", kl, batch.loss_mask)
        if bool(batch.loss_mask.any()):
            metrics.add("policy/kl_completion_mean", self._observed(batch, kl))
        taken = self.penalty.kl_penalty(batch, used).to(torch.float64)
        return batch.having(token_rewards=batch.token_rewards + taken, rewards=batch.rewards + taken.sum(1))

    def next(self, batch: TrainBatch, coef: float | None) -> float | None:
        """Return the coefficient of the next step, after a step on `batch`; None where nothing is steered."""
        if not self.penalty.in_reward or self.penalty.target is None:
            return None
        used = self.penalty.coef if coef is None else coef
        if not bool(batch.loss_mask.any()):
            return used
        kl = self._observed(batch, self.penalty.kl_penalty(batch, -1.0))
        return self.penalty.steered(used, kl, int(batch.loss_mask.any(1).sum()))

    @staticmethod
    def _observed(batch: TrainBatch, kl: Tensor) -> float:
        """Return the controlled quantity: the mean over completions of the mean over their trained tokens."""
        trained = batch.loss_mask.any(1)
        return float(masked_mean(kl, batch.loss_mask, dim=1)[trained].mean())


@dataclass(frozen=True)
class EntropyControl:
    """Adapts the coefficient of the entropy bonus; without effect where it has no target."""

    bonus: EntropyBonus = field(default_factory=EntropyBonus)

    def with_coef(self, batch: TrainBatch, state: TrainerState, metrics: Metrics) -> TrainBatch:
        """Return the batch with α of this step, the same for every completion."""
        if self.bonus.target is None:
            return batch
        alpha = self.bonus.in_force(self._coef(state), state.entropy)
        metrics.add("policy/entropy_coef", alpha)
        return batch.having(entropy_coef=torch.full((batch.size,), alpha, dtype=torch.float64))

    def after(self, state: TrainerState, entropy: float | None) -> TrainerState:
        """Return the state with the coefficient of the next step; `entropy` of this one, None: no token was trained."""
        if self.bonus.target is None or entropy is None:
            return state
        return replace(state, entropy_coef=self.bonus.steered(self._coef(state), entropy), entropy=entropy)

    def _coef(self, state: TrainerState) -> float:
        return self.bonus.coef if state.entropy_coef is None else state.entropy_coef
