"""The updates of one step: their metrics, what happens to those that were skipped, and the errors of a diverged run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from oncurve.base.errors import ConfigError, ModelError, TrainingError
from oncurve.learner import UpdateResult
from oncurve.metrics import Metrics
from oncurve.trainer.saving.recorder import Recorder
from oncurve.types import TrainBatch

SKIPPED_IN_A_ROW_LIMIT = 3  # one bad batch is bad luck; three in a row are a broken run


@dataclass
class Updates:
    """Collects the results of one step's updates.

    step        of the run, from 1
    version     of the policy that the step began with
    skipped     updates skipped in a row, those of the steps before included
    metrics     of the step
    recorder    keeps the batches of skipped updates; None: they are not kept
    target_kl   no update follows one that finds the policy farther than this from the one that sampled
    too_far     an update has found it so
    """

    step: int
    version: int
    skipped: int
    metrics: Metrics
    recorder: Recorder | None
    target_kl: float | None = None
    count: int = 0
    too_far: bool = False
    off_policy: bool = False

    def add(self, batch: TrainBatch, result: UpdateResult, version: int) -> None:
        """Add the result of an update on `batch`, after which the policy has this `version`.

        The updates after the first that moved the policy are off-policy. Raises TrainingError at the third update
        skipped in a row, with a diagnosis. Raises ConfigError: there is a `target_kl`, and no KL to compare it with.
        """
        if self.target_kl is not None:
            self.too_far = _kl_old(result) > self.target_kl
        self.metrics.merge(result.metrics, off_policy=self.off_policy)
        self.off_policy = version != self.version
        self.skipped = self.skipped + 1 if result.skipped else 0
        if result.skipped:
            where = "not kept: this run has no directory"
            if self.recorder is not None:
                kept = self.recorder.incident(self.step, self.count, batch, result.reason)
                where = "not kept: the disk is full" if kept is None else str(kept)
            if self.skipped >= SKIPPED_IN_A_ROW_LIMIT:
                raise skipped_in_a_row(self.skipped, self.step, result.reason, where, batch.advantages)
        self.count += 1

    def leave_out(self, planned: int) -> None:
        """Count the updates that were not made, of those that were planned for the step."""
        if self.target_kl is not None:
            self.metrics.add("optim/updates_left_out", float(planned - self.count))


def _kl_old(result: UpdateResult) -> float:
    """Return the update's estimate of KL(π_old || π_θ); 0 where it computed no row of the policy."""
    found = result.metrics.result()
    if "policy/kl_old" not in found and "policy/entropy" in found:
        raise ConfigError(
            "learner.target_kl: the objective reports no policy/kl_old to compare it with; leave it out, or report "
            '"policy/kl_old", ρ - 1 - log ρ per token, in the `stats` of its TokenLoss'
        )
    return found.get("policy/kl_old", 0.0)


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
