"""Training a reward model: passes over labelled examples, one batch per update; by itself, or in a run's iterations.

The order of the examples is a function of seed and pass, so the position of a training is one number: its updates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import CheckpointError, DataError, TrainingError
from oncurve.metrics import Metrics
from oncurve.randomness import permutation
from oncurve.reward_models.examples import Example
from oncurve.reward_models.learner import RewardLearner
from oncurve.trainer import Checkpoints, Refusals, StopSignals

SKIPPED_IN_A_ROW_LIMIT = 3


def updates_of(examples: int, batch_size: int, epochs: int) -> int:
    """Return the number of updates of `epochs` passes: the last batch of each may be smaller."""
    return epochs * -(-examples // batch_size)


def batch_of(update: int, examples: int, batch_size: int, seed: int) -> list[int]:
    """Return the indices of the examples of one update, from 0. The order is a function of (seed, pass)."""
    per_pass = -(-examples // batch_size)
    start = (update % per_pass) * batch_size
    found: list[int] = permutation(seed, update // per_pass, examples)[start : start + batch_size].tolist()
    return found


def fit(learner: RewardLearner, examples: Sequence[Example], seed: int) -> Metrics:
    """Return all passes over `examples`, as the learner's settings say; returns their metrics.

    Raises TrainingError: three updates in a row were not finite.
    """
    metrics, settings, skipped = Metrics(), learner.settings, 0
    for update in range(updates_of(len(examples), settings.batch_size, settings.epochs)):
        indices = batch_of(update, len(examples), settings.batch_size, seed)
        skipped = _update(learner, [examples[index] for index in indices], metrics, skipped)
    return metrics


def _update(learner: RewardLearner, batch: Sequence[Example], metrics: Metrics, skipped: int) -> int:
    """Return one update, added to `metrics`; the number of updates skipped in a row."""
    result = learner.update(batch)
    metrics.merge(result.metrics)
    metrics.add("reward_model/updates", 0.0 if result.skipped else 1.0)
    skipped = skipped + 1 if result.skipped else 0
    if skipped >= SKIPPED_IN_A_ROW_LIMIT:
        raise TrainingError(
            f"{skipped} updates of the reward model in a row were not finite, the last: {result.reason}. "
            "Lower reward_model.learning_rate, or compute in float32"
        )
    return skipped


@dataclass
class RewardTraining:
    """The training of a reward model by itself, in a run directory.

    learner     the classifier with its optimizer
    examples    the training examples; all of them fit
    seed        of their order
    folder      the run directory, for metrics.jsonl and checkpoints/
    every       updates between evaluations; 0: only at the end
    keep_every  updates between checkpoints; 0: only at the end, or when it is stopped
    keep        checkpoints that stay
    evaluate    held-out metrics by declared key
    identity    of the run, written into each checkpoint (`oncurve.run.directory.identity`)
    environment what bit equality depends on; `environment_before`: as the restored checkpoint has it
    """

    learner: RewardLearner
    examples: Sequence[Example]
    seed: int
    folder: Path
    every: int = 0
    keep_every: int = 0
    keep: int = 2
    evaluate: Callable[[], dict[str, float]] = dict
    identity: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    environment_before: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.learner.settings
        if not self.examples:
            raise DataError("there is no example to train on")
        self.updates = updates_of(len(self.examples), settings.batch_size, settings.epochs)
        self.done = 0
        self._log: durable.AppendLog | None = None
        self._refusals = Refusals()
        self._skipped = 0
        self._settled: tuple[int, int] | None = None

    def restore(self) -> list[str]:
        """Load the newest checkpoint that verifies; a line for each that was passed over. Raises CheckpointError."""
        found = self.checkpoints.read()
        if found is None:
            return ["there is no checkpoint; the training begins again, and will be the same"]
        path, record, notes = found
        if "done" not in record:
            raise CheckpointError(f"{path} is not of a reward model's training")
        self.learner.load(path, record["learner"])
        self.done, self._skipped = int(record["done"]), int(record["skipped"])
        self.checkpoints.newest = self.done
        self._log, lost = durable.AppendLog.reopened(self.folder / "metrics.jsonl", int(record["metrics_bytes"]))
        self.environment_before = record["environment"]
        return [*notes, *lost]

    def train(self, tell: Callable[[int, dict[str, float]], None]) -> str | None:
        """Do the updates that are left; returns the name of the signal that stopped it, or None.

        `tell` is called with every line of the log. Whatever ends the training, the last finished update is in a
        checkpoint afterwards, unless weights have begun to change since. A full disk ends no update (`Refusals`).
        Raises DiskError: it refuses this last checkpoint.
        """
        if self._log is None:
            self._log = durable.AppendLog(self.folder / "metrics.jsonl", offset=0)
        size = self.learner.settings.batch_size
        self._settle()
        with StopSignals(30.0) as signals, signals.at_the_end(self._save):
            while self.done < self.updates and signals.requested is None:
                indices = batch_of(self.done, len(self.examples), size, self.seed)
                metrics = Metrics()
                self._skipped = _update(self.learner, [self.examples[i] for i in indices], metrics, self._skipped)
                self.done += 1
                with signals.unabandoned():
                    self._write(metrics, tell)
                    due = self.keep_every and self.done % self.keep_every == 0
                    if signals.checkpoint_wanted() or due or self._refusals.waiting:
                        self._refusals.checkpoint(self._save)
                    self._refusals.tell(self.done)
        self.close()
        return signals.requested.name if signals.requested else None

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints in `folder`."""
        return Checkpoints(self.folder / "checkpoints", self.keep, self.identity)

    def close(self) -> None:
        """Close the log. Twice is allowed."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _settle(self) -> None:
        """Note that everything is as the last finished update left it, its line written: a checkpoint may follow."""
        self._settled = (self.done, self.learner.changes)

    def _write(self, metrics: Metrics, tell: Callable[[int, dict[str, float]], None]) -> None:
        due = self.done == self.updates or (self.every and self.done % self.every == 0)
        line = {"step": float(self.done), **metrics.result(), **(self.evaluate() if due else {})}
        line |= self._refusals.metrics()
        assert self._log is not None
        self._log.append(line)
        if self._log.refused is not None:
            self._refusals.note(self._log.refused)
        self._settle()
        tell(self.done, line)

    def _save(self) -> None:
        if self._log is None or self.checkpoints.newest == self.done:
            return
        if self._settled == (self.done, self.learner.changes):
            self._log.sync()
            record = {
                "done": self.done,
                "skipped": self._skipped,
                "metrics_bytes": self._log.offset,
                "environment": dict(self.environment),
            }
            self.checkpoints.write(self.done, lambda folder: {**record, "learner": self.learner.save(folder)})
