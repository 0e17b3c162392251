"""Objectives: a loss per token `(B, T)` to minimise, which makes good completions likelier, and statements about it.

Losses are 0, with gradient 0, where `loss_mask` is False, whatever stands there. Where a batch has no
`old_logprobs` (one update per rollout of an exact engine) the old policy is the present one: ρ is 1, its gradient
alive.
"""

from dataclasses import replace
from typing import Protocol

import torch

from oncurve.base.errors import ConfigError
from oncurve.components import check_per_token, lacking, misstated, stated, uncallable, unflagged
from oncurve.metrics import declared
from oncurve.types import TokenLoss, TokenStats, TrainBatch

OBJECTIVE_NEEDS = frozenset({"entropy", "full_kl"})
"""The token statistics next to the log-probs that an objective can need."""


class Objective(Protocol):
    """The interface that the learner calls. An objective may state more of itself; see the functions below."""

    @property
    def needs(self) -> frozenset[str]:
        """Token statistics next to the log-probs: a subset of {"entropy", "full_kl"}."""

    def __call__(self, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
        """Return the unreduced loss and statistics, `(B, T)`."""


def zero_gradient_at_zero_advantage(objective: object) -> bool:
    """Return whether a row whose advantages are all 0 has loss 0 and gradient 0, so that it need not be computed.

    Left out by a component: False.
    """
    return bool(stated(objective, "zero_gradient_at_zero_advantage", False))


def zero_statistics(objective: object) -> tuple[str, ...]:
    """Return statistics of its own that are 0 in a row whose advantages are all 0. Left out by a component: none."""
    return tuple(stated(objective, "zero_statistics", ()))


def reads_reference(objective: object) -> bool:
    """Return whether it reads `batch.ref_logprobs`, apart from the KL term. Left out by a component: True."""
    return bool(stated(objective, "reads_reference", True))


def has_importance_ratio(objective: object) -> bool:
    """Return whether π_θ/π_old corrects for the updates since the batch was sampled. Left out by a component: True."""
    return bool(stated(objective, "importance_ratio", True))


def expected_aggregation(objective: object) -> str | None:
    """Return the kind of aggregation that its formula is meant for. Left out by a component: None, any."""
    kind: str | None = stated(objective, "expected_aggregation", None)
    return kind


def corrects_for_sampler(objective: object) -> bool:
    """Return whether its ratio is to the sampler's recorded log-probs, so that old ones need not be computed, nor
    corrected.

    Left out by a component: False.
    """
    return bool(stated(objective, "corrects_for_sampler", False))


def objective_note(objective: object) -> str | None:
    """Return what the plan says of its settings, after its name. Left out by a component: None, nothing."""
    note: str | None = stated(objective, "note", None)
    return note


def check_objective(objective: object) -> str | None:
    """Return what is wrong with an objective, or with what it states of itself, or None."""
    lacks = lacking(objective, ("__call__", "needs"), "objective")
    if lacks is not None:
        return lacks
    needs: object = getattr(objective, "needs", None)
    flags = ("zero_gradient_at_zero_advantage", "reads_reference", "importance_ratio", "corrects_for_sampler")
    return (
        uncallable(objective, "stats", "batch")
        or misstated(f"{type(objective).__name__}.needs", needs, OBJECTIVE_NEEDS)
        or unflagged(objective, flags)
    )


def objective_loss(objective: Objective, stats: TokenStats, batch: TrainBatch) -> TokenLoss:
    """Return the objective's loss, multiplied by the batch's `policy_weights` where it has any, and statistics, each
    `(B, T)`.

    Statistics are of the loss without these weights. Raises ConfigError: the objective gives something else, or a
    statistic that is not declared.
    """
    found: object = objective(stats, batch)
    name, shape = type(objective).__name__, stats.logprobs.shape
    if not isinstance(found, TokenLoss):
        raise ConfigError(f"objective.kind: {name} must return an oncurve.types.TokenLoss; it returned {found!r:.80}")
    check_per_token(found.loss, shape, "objective.kind", f"{name} must return one loss per token")
    if stats.logprobs.requires_grad and not found.loss.requires_grad:
        raise ConfigError(f"objective.kind: {name}'s loss has no gradient; compute it from stats.logprobs")
    for key, values in found.stats.items():
        try:
            declared(key)
        except KeyError as error:
            raise ConfigError(f"objective.kind: {name} logs something unknown: {error.args[0]}") from None
        check_per_token(values, shape, "objective.kind", f"{name} must return one value of {key} per token")
    if batch.policy_weights is None:
        return found
    weights = torch.where(batch.loss_mask, batch.policy_weights.to(found.loss.dtype), 0.0)
    return replace(found, loss=found.loss * weights)
