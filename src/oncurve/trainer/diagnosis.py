"""What to say of a run that has lost its footing: what happened, where it can be looked at, what usually helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncurve.errors import ModelError, TrainingError

__all__ = ["divergence_explained", "skipped_in_a_row"]

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
    """A model that could be sampled from and, after some steps, no longer can has been broken by them."""
    try:
        yield
    except ModelError as error:
        if not steps_done:
            raise  # it came so
        raise TrainingError(f"after step {steps_done} the policy cannot be sampled from: {error}\n{ADVICE}") from error
