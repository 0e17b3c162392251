"""A learner, a finished batch and its gradient in one line each, for the tests that compare gradients."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fakes.tiny_policy import tiny_model
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.kl import KL_KINDS
from oncurve.learner import Learner, LearnerConfig, LocalLearner
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.types import Group, TrainBatch
from oracles.plain_grpo import PlainGroup

OBJECTIVES = tuple(OBJECTIVE_KINDS)
AGGREGATIONS = tuple(AGGREGATION_KINDS)
MAX_LENGTH = 6
PAIRS = [(one, kl) for one in OBJECTIVES for kl in KL_KINDS if one == "clipped" or kl == "k3"]
"""Objective and KL term are added: what holds for each with one of the other holds for all."""


def make_learner(
    objective: str = "clipped",
    estimator: str = "k3",
    kl_coef: float = 0.1,
    entropy_coef: float = 0.0,
    dtype: torch.dtype = torch.float64,
    compute_dtype: torch.dtype | None = None,
    temperature: float = 0.7,
    total_updates: int = 10,
    tied: bool = False,
    **settings: object,
) -> LocalLearner:
    """A learner of a tiny policy (seed 0), whose reference is another one (seed 1) where there is a KL term."""
    return LearnerConfig(**settings).build(
        tiny_model(dtype, seed=0, tied=tied),
        OBJECTIVE_KINDS[objective](),
        Regularizer(KLPenalty(estimator=estimator, coef=kl_coef), entropy_coef),
        temperature=temperature,
        total_updates=total_updates,
        reference=tiny_model(dtype, seed=1, tied=tied) if kl_coef else None,
        dtype=compute_dtype,
    )


def finished(
    learner: LocalLearner, groups: list[Group], aggregation: str = "token-mean", old: bool = True
) -> TrainBatch:
    """The batch of `groups` as it comes to an update; with `old`, the recorded log-probs are the old policy's."""
    batch = with_reference(learner, collate(groups))
    if old:
        batch = batch.having(old_logprobs=batch.rollout_logprobs)
    batch = batch.with_advantages(GroupAdvantage()(batch))
    return batch.with_weights(weigher(aggregation)(batch))


def with_reference(learner: Learner, batch: TrainBatch) -> TrainBatch:
    """The batch with what reference and critic say of it."""
    return learner.score(batch, frozenset({"reference", "values"}))


def old_logprobs(learner: Learner, batch: TrainBatch) -> Tensor:
    """Log-probs `(B, T)` of the batch under the learner's weights."""
    return learner.score(batch, frozenset({"old"})).old_logprobs


def carried_over(given: Any, taken: Any, folder: Path) -> Any:
    """Loads into `taken` what `given` saves, by way of files and JSON; the record."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    record = json.loads(json.dumps(given.save(checkpoint)))
    taken.load(checkpoint, record)
    return record


def plain_groups(
    groups: list[Group], weights: list[list[float]] | None = None, old: list[list[float]] | None = None
) -> list[PlainGroup]:
    """The groups as the oracle takes them, with `weights` and `old` log-probs of each completion in order.

    The old log-probs are by default those that the completions have.
    """
    given = [list(c.logprobs) for group in groups for c in group.completions]
    rows, all_weights = iter(old or given), iter(weights or ())
    return [
        PlainGroup(
            list(group.prompt.ids),
            [list(c.ids) for c in group.completions],
            [score.reward if score.valid else None for score in group.scores],
            [next(rows) for _ in group.completions],
            [list(c.trained or (True,) * len(c.ids)) for c in group.completions],
            sampler_logprobs=[list(c.logprobs) for c in group.completions],
            policy_weights=[next(all_weights) for _ in group.completions] if weights else None,
        )
        for group in groups
    ]


def weigher(aggregation: str) -> Any:
    settings = {"max_length": MAX_LENGTH} if aggregation == "seq-mean-token-sum-norm" else {}
    return AGGREGATION_KINDS[aggregation](**settings)


def gradient(learner: LocalLearner, batch: TrainBatch) -> Tensor:
    """The whole gradient of one update as one float64 vector; nothing is stepped."""
    learner.accumulate(batch)
    return torch.cat([part.flatten().double() for part in learner.optimizer.gradients().values()])


def relative_error(given: Tensor, right: Tensor) -> float:
    return float((given - right).abs().max() / right.abs().max().clamp(min=1e-30))
