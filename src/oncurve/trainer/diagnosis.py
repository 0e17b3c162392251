"""The errors of a run that has diverged: what happened, where to look, what usually helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncurve.errors import ModelError, TrainingError

ADVICE = (
    "The same settings will fail the same way. What usually helps, in this order: a smaller learner.learning_rate; "
    "rewards within [-1, 1]; model.dtype = 'float32'; a larger kl.coef."
)


def skipped_in_a_row(count: int, step: int, reason: str, batch: str) -> TrainingError:
    """The error of `count` skipped updates; `batch` says where the last one's batch is."""
    return TrainingError(
        f"{count} updates in a row were skipped, the last at step {step}: {reason}\nThe batch: {batch}\n{ADVICE}"
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
