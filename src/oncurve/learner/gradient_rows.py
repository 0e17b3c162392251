"""Rows with and without gradient: a row without is exactly 0 in the gradient, and is not computed."""

from torch import Tensor

from oncurve.batching import select_rows
from oncurve.losses import Objective, Regularizer, zero_gradient_at_zero_advantage, zero_statistics
from oncurve.metrics import Metrics
from oncurve.types import TrainBatch


def zero_advantage_is_enough(objective: Objective, regularizer: Regularizer) -> bool:
    """Return whether a row whose advantages are all 0 has no gradient: the objective states it, no KL or entropy is
    added.
    """
    plain = not regularizer.kl.loss_coef and not regularizer.rewards_entropy
    return plain and zero_gradient_at_zero_advantage(objective)


def rows_with_gradient(batch: TrainBatch, by_advantage: bool) -> TrainBatch | None:
    """Return the batch of the rows that can have a gradient, in the batch's order; None where there is none.

    A row has none if none of its tokens is trained or weighs anything; and, `by_advantage`, if all its advantages are
    exactly 0, as in a constant group. The normaliser counts such rows too: the token weights were made before.

    Raises ValueError where the batch has no `token_weights` or no `advantages`.
    """
    if batch.token_weights is None or batch.advantages is None:
        raise ValueError("an update needs advantages and token_weights: batch.with_advantages(…).with_weights(…) first")
    weighs = batch.token_weights != 0
    if batch.apart_weights is not None:
        weighs = weighs | (batch.apart_weights != 0)
    moving = batch.loss_mask & weighs
    if by_advantage:
        moving = moving & (batch.advantages != 0)
    rows = moving.any(1).nonzero().squeeze(1)
    if rows.numel() == batch.size:
        return batch
    return select_rows(batch, rows) if rows.numel() else None


def observe_rows_without_gradient(
    metrics: Metrics, batch: TrainBatch, computed: TrainBatch | None, objective: Objective
) -> None:
    """Add the trained tokens of the rows of `batch` that were not computed to the statistics that are 0 there."""
    tokens = batch.token_count - (computed.token_count if computed is not None else 0)
    for key in ("policy/objective_loss", *zero_statistics(objective)) if tokens else ():
        metrics.add(key, 0.0, count=tokens)


def observe_mismatch(metrics: Metrics, logprobs: Tensor, batch: TrainBatch) -> None:
    """Observe how far the learner is from what the sampler recorded: the metric keeps a step's first update."""
    if batch.rollout_logprobs is not None:
        gap = (logprobs.detach() - batch.rollout_logprobs).abs()
        metrics.add("policy/mismatch", gap, batch.loss_mask)
        metrics.add("policy/mismatch_max", gap, batch.loss_mask)
