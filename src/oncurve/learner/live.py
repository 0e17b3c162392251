"""Which rows of a batch can move anything: the others' gradient is exactly 0, and they are not computed."""

from __future__ import annotations

from oncurve.batching import select_rows
from oncurve.losses import OBJECTIVE_KINDS, Objective, Regularizer
from oncurve.metrics import Metrics
from oncurve.types import TrainBatch

__all__ = ["live_rows", "observe_dead_rows", "still_without_advantage"]

KNOWN_OF_DEAD_ROWS = ("policy_loss", "clip_fraction_low", "clip_fraction_high", "dual_clip_fraction")
"""Statistics that are 0 by their formula where the advantage is 0, whatever the policy says there."""


def still_without_advantage(objective: Objective, regularizer: Regularizer) -> bool:
    """Whether a token with advantage 0 has gradient 0: no KL in the loss, no entropy bonus, and a built-in objective.

    Every kind in `OBJECTIVE_KINDS` is tested for it; of an objective from elsewhere nothing is assumed.
    """
    plain = not regularizer.kl.loss_coef and not regularizer.entropy_coef
    kind: type[object] = type(objective)
    return plain and kind in OBJECTIVE_KINDS.values()


def live_rows(batch: TrainBatch, by_advantage: bool) -> TrainBatch | None:
    """The batch of the rows that can have a gradient, in the batch's order; None where there is none.

    A row is dead if none of its tokens is trained or weighs anything; and, `by_advantage`, if all its advantages are
    exactly 0, as in a constant group. Dead rows keep their place in the normaliser: the token weights were made before.

    Raises ValueError where the batch has no `token_weights` or no `advantages`.
    """
    if batch.token_weights is None or batch.advantages is None:
        raise ValueError("an update needs advantages and token_weights: batch.with_advantages(…).with_weights(…) first")
    weighs = batch.token_weights != 0
    if batch.kl_weights is not None:
        weighs = weighs | (batch.kl_weights != 0)
    moving = batch.loss_mask & weighs
    if by_advantage:
        moving = moving & (batch.advantages != 0)
    live = moving.any(1)
    rows = live.nonzero().squeeze(1)
    if rows.numel() == batch.size:
        return batch
    return select_rows(batch, rows) if rows.numel() else None


def observe_dead_rows(metrics: Metrics, batch: TrainBatch, live: TrainBatch | None) -> None:
    """Counts the dead rows' trained tokens into the statistics that are 0 there without looking."""
    dead_tokens = batch.token_count - (live.token_count if live is not None else 0)
    for key in KNOWN_OF_DEAD_ROWS if dead_tokens else ():
        metrics.add(key, 0.0, count=dead_tokens)
