"""The errors of a run that has diverged: what happened, where to look, what usually helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from oncurve.base.errors import ModelError, TrainingError

ADVICE = (
    "The same settings will fail the same way. What usually helps, in this order: a smaller learner.learning_rate; "
    "rewards within [-1, 1]; model.dtype = 'float32'; a larger kl.coef."
)

NO_ADVANTAGES = (
    "{} of its advantages are not finite. They come before any update, so no learning rate changes them. "
    "Scale rewards that are around 1e38 to about 1; where advantage.kind is your own, look there for a division by 0."
)


def skipped_in_a_row(count: int, step: int, reason: str, batch: str, advantages: Tensor | None) -> TrainingError:
    """Return the error of `count` skipped updates; `batch` says where the last one's batch is, with `advantages`."""
    nonfinite = 0 if advantages is None else int((~advantages.float().isfinite()).sum())
    advice = NO_ADVANTAGES.format(f"{nonfinite:,}") if nonfinite else ADVICE
    return TrainingError(
        f"{count} updates in a row were skipped, the last at step {step}: {reason}\nThe batch: {batch}\n{advice}"
    )


@contextmanager
def divergence_explained(steps_done: int) -> Iterator[None]:
    """Turn the error of a model that could be sampled from, until some steps broke it, into one that says so."""
    try:
        yield
    except ModelError as error:
        if not steps_done:
            raise  # the model was given like this
        raise TrainingError(f"after step {steps_done} the policy cannot be sampled from: {error}\n{ADVICE}") from error
