"""The components that make of rewards a weight and an advantage per token, checked: each may be from elsewhere.

With them the coefficients that change from step to step: of a KL in the reward, and of the entropy bonus.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from oncurve.advantages import needs_of
from oncurve.base.errors import ConfigError
from oncurve.components import check_per_token
from oncurve.losses import EntropyBonus, KLPenalty
from oncurve.metrics import Metrics
from oncurve.ops import masked_mean
from oncurve.trainer.state import TrainerState
from oncurve.types import AdvantagesAndReturns, TokenWeights, TrainBatch


class Advantage(Protocol):
    """Turns a batch's rewards into one advantage per token."""

    @property
    def min_valid_completions(self) -> int:
        """The fewest valid completions a group needs."""

    def __call__(self, batch: TrainBatch) -> Tensor | AdvantagesAndReturns:
        """Return advantages `(B, T)`, with returns where a critic learns from them."""


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


@dataclass(frozen=True)
class Credit:
    """Advantage and aggregation, and the coefficients of KL and entropy that change from step to step."""

    advantage: Advantage
    aggregation: Callable[[TrainBatch], Tensor | TokenWeights]
    kl: KLControl
    entropy: EntropyControl = field(default_factory=EntropyControl)


def credited(batch: TrainBatch, advantage: Advantage) -> TrainBatch:
    """Return the batch with `advantages (B, T)`, and with `returns (B, T)` where a critic is to learn from them.

    Raises ConfigError: the advantage gives something else, or no returns where the batch has a critic's values, or
    needs the log-probs of a teacher that the learner has not given.
    """
    name = type(advantage).__name__
    if "teacher" in needs_of(advantage) and batch.teacher_logprobs is None:
        raise ConfigError(
            f"learner.kind: {name} needs a teacher's log-probs, and the learner's `score` left teacher_logprobs out; "
            'add them there where "teacher" is wanted, or choose another advantage.kind'
        )
    found: object = advantage(batch)
    parts = [found.advantages, found.returns] if isinstance(found, AdvantagesAndReturns) else [found]
    for part in parts:
        check_per_token(
            part,
            batch.completion_ids.shape,
            "advantage.kind",
            f"{name} must return one advantage per token",
            ". For one advantage per completion (B,), return x[:, None] * batch.existing()",
        )
    if batch.values is not None and not isinstance(found, AdvantagesAndReturns):
        raise ConfigError(
            f"advantage.kind: {name} returned advantages without returns, and the critic learns from returns; return "
            "oncurve.types.AdvantagesAndReturns(advantages, returns)"
        )
    assert isinstance(found, Tensor | AdvantagesAndReturns)
    return batch.with_advantages(found)


def weighted_by(aggregation: Callable[[TrainBatch], Tensor | TokenWeights], batch: TrainBatch) -> TrainBatch:
    """Return the batch with the weights `(B, T)` of its token losses.

    Raises ConfigError: the aggregation gives something else, or weighs a token that is not trained.
    """
    found = aggregation(batch)
    parts = {"aggregation.kind": found}
    if isinstance(found, TokenWeights):
        parts = {"aggregation.kind": found.policy, "kl.aggregation": found.apart}
    for setting, part in parts.items():
        weights = check_per_token(part, batch.loss_mask.shape, setting, "it must return one weight per token")
        if weights[~batch.loss_mask].any():
            raise ConfigError(f"{setting}: a weight must be 0 where loss_mask is False; multiply by batch.loss_mask")
    return batch.with_weights(found)
