"""The components that make of rewards a weight and an advantage per token, checked: each may be from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from oncurve.advantages import needs_of
from oncurve.base.errors import ConfigError
from oncurve.components import check_per_token
from oncurve.trainer.control import EntropyControl, KLControl
from oncurve.trainer.protocols import Advantage
from oncurve.types import AdvantagesAndReturns, TokenWeights, TrainBatch


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
