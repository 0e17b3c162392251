"""The updates of one step: their metrics, and what happens to those that were skipped."""

from __future__ import annotations

from dataclasses import dataclass

from oncurve.base.errors import ConfigError
from oncurve.learner import UpdateResult
from oncurve.metrics import Metrics
from oncurve.trainer.saving.recorder import Recorder
from oncurve.trainer.watching.diagnosis import skipped_in_a_row
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
