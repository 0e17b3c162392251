"""Training a reward model: passes over judged examples, a batch an update; by itself, or in a run's iterations.

The order of the examples is a function of seed and pass, so where a training stands is one number: its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.errors import CheckpointError, DataError, TrainingError
from oncurve.learner.reward_model import Example, RewardLearner
from oncurve.metrics import Metrics
from oncurve.randomness import permutation
from oncurve.trainer.checkpoint import FORMAT
from oncurve.trainer.signals import StopSignals

__all__ = ["RewardTraining", "batch_of", "fit", "updates_of"]

SKIPPED_IN_A_ROW_LIMIT = 3


def updates_of(examples: int, batch_size: int, epochs: int) -> int:
    """Updates of `epochs` passes: the last batch of each may be smaller."""
    return epochs * -(-examples // batch_size)


def batch_of(update: int, examples: int, batch_size: int, seed: int) -> list[int]:
    """The indices of the examples of one update, from 0: a new order each pass, a function of (seed, pass)."""
    per_pass = -(-examples // batch_size)
    place = (update % per_pass) * batch_size
    found: list[int] = permutation(seed, update // per_pass, examples)[place : place + batch_size].tolist()
    return found


def fit(learner: RewardLearner, examples: Sequence[Example], seed: int) -> Metrics:
    """All passes over `examples`, as the learner's settings say; what came of them.

    Raises TrainingError: three updates in a row were not finite.
    """
    metrics = Metrics()
    settings = learner.settings
    skipped = 0
    for update in range(updates_of(len(examples), settings.batch_size, settings.epochs)):
        indices = batch_of(update, len(examples), settings.batch_size, seed)
        skipped = _update(learner, [examples[index] for index in indices], metrics, skipped)
    return metrics


def _update(learner: RewardLearner, batch: Sequence[Example], metrics: Metrics, skipped: int) -> int:
    """One update into `metrics`; how many in a row have been skipped since the last good one."""
    result = learner.update(batch)
    metrics.merge(result.metrics)
    metrics.add("reward_model_updates", 0.0 if result.skipped else 1.0)
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

    learner     what is trained
    examples    what on; all of them fit
    seed        of their order
    folder      the run directory, for metrics.jsonl and checkpoints/; None: nothing is kept
    every       updates between evaluations; 0: only at the end
    keep_every  updates between checkpoints; 0: only at the end, or when it is stopped
    keep        checkpoints that stay
    evaluate    held-out metrics by declared key
    identity    of the run, written into each checkpoint (`oncurve.run.identity`)
    environment what bit equality depends on; `environment_before`: as it was when the restored checkpoint was written
    """

    learner: RewardLearner
    examples: Sequence[Example]
    seed: int
    folder: Path | None = None
    every: int = 0
    keep_every: int = 0
    keep: int = 2
    evaluate: Callable[[], dict[str, float]] = dict
    identity: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    environment_before: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        settings = self.learner.settings
        if not self.examples:
            raise DataError("there is no example to train on")
        self.updates = updates_of(len(self.examples), settings.batch_size, settings.epochs)
        self.done = 0
        self._saved = -1
        self._log: durable.AppendLog | None = None
        self._skipped = 0
        self._settled: tuple[int, int] | None = None

    def restore(self) -> list[str]:
        """Take up the newest checkpoint that verifies; a line for each that was passed over. Raises CheckpointError."""
        assert self.folder is not None
        found = durable.newest_valid(self.folder / "checkpoints", "step-")
        notes = [f"{path.name} is damaged and was passed over: {'; '.join(why)}" for path, why in found.skipped.items()]
        if found.path is None:
            if notes:
                raise CheckpointError("no checkpoint verifies. " + " ".join(notes))
            return ["there is no checkpoint; the training begins again, and will be the same"]
        record = durable.read_json(found.path / "state.json")
        if record.get("format") != FORMAT or "learner" not in record:
            raise CheckpointError(f"{found.path} was written by another version of oncurve")
        self.learner.load_state(durable.read_tensors(found.path / "learner.safetensors"), record["learner"])
        self.done, self._skipped = int(record["done"]), int(record["skipped"])
        self._saved = self.done
        self._log, lost = durable.AppendLog.reopened(self.folder / "metrics.jsonl", int(record["metrics_bytes"]))
        self.environment_before = record["environment"]
        return [*notes, *lost]

    def train(self, tell: Callable[[int, dict[str, float]], None]) -> str | None:
        """The updates that are left; `tell` hears of every line of the log. The signal that stopped it, or None.

        Whatever ends it, the last finished update is in a checkpoint then, unless weights have begun to change since.
        """
        if self.folder is not None and self._log is None:
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
                    if self.keep_every and self.done % self.keep_every == 0:
                        self._save()
        self.close()
        return signals.requested.name if signals.requested else None

    @property
    def newest(self) -> int:
        """The update of the newest checkpoint; 0: there is none."""
        return max(self._saved, 0)

    def close(self) -> None:
        """Close the log. Twice is allowed."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _settle(self) -> None:
        """Everything is as the last finished update left it, and its line is written: a checkpoint may be."""
        self._settled = (self.done, self.learner.changes)

    def _write(self, metrics: Metrics, tell: Callable[[int, dict[str, float]], None]) -> None:
        due = self.done == self.updates or (self.every and self.done % self.every == 0)
        line = {"step": float(self.done), **metrics.result(), **(self.evaluate() if due else {})}
        if self._log is not None:
            self._log.append(line)
        self._settle()
        tell(self.done, line)

    def _save(self) -> None:
        if self.folder is None or self._log is None or self._saved == self.done:
            return
        if self._settled != (self.done, self.learner.changes):
            return
        self._log.sync()
        tensors, meta = self.learner.state()
        record = {
            "format": FORMAT,
            "done": self.done,
            "skipped": self._skipped,
            "metrics_bytes": self._log.offset,
            "learner": meta,
            "environment": dict(self.environment or {}),
            "run": dict(self.identity or {}),
        }
        path = self.folder / "checkpoints" / f"step-{self.done:06d}"
        durable.write_directory(path, {"learner.safetensors": tensors, "state.json": durable.to_json(record)})
        durable.prune(self.folder / "checkpoints", "step-", self.keep)
        self._saved = self.done
