"""The loop. It knows no algorithm: advantages, objective, KL and aggregation are handed to it as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from oncurve.batching import collate, minibatches
from oncurve.errors import TrainingError
from oncurve.learner import Learner
from oncurve.metrics import Metrics
from oncurve.rollout import Policy, RolloutEngine
from oncurve.trainer.checkpoint import Checkpoints
from oncurve.trainer.observe import observe_batch, observe_groups, timer
from oncurve.trainer.recorder import Recorder
from oncurve.trainer.signals import StepAbandonedError, StopSignals
from oncurve.trainer.state import TrainerState
from oncurve.types import Group, Prompt, TrainBatch

__all__ = ["Advantage", "Scorer", "StepResult", "Stream", "Trainer", "TrainerConfig"]

SKIPPED_IN_A_ROW_LIMIT = 3  # one bad batch is bad luck; three in a row are a broken run


class Advantage(Protocol):
    """Turns a batch's rewards into one advantage per token."""

    @property
    def least_valid(self) -> int:
        """The fewest valid completions a group needs."""
        ...

    def __call__(self, batch: TrainBatch) -> Tensor:
        """Advantages `(B, T)`."""
        ...


class Scorer(Protocol):
    """Fills in the scores of groups."""

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        """The same groups, each completion with its score. `step` is for rewards that ask how far the run is."""
        ...


class Stream(Protocol):
    """Prompts in an order that is a function of the cursor."""

    def take(self, cursor: int, count: int) -> tuple[list[Prompt], int]:
        """`count` prompts from `cursor` on, and the cursor after them."""
        ...

    def epoch(self, cursor: int) -> float:
        """How many times the data has been gone through at `cursor`."""
        ...


@dataclass(frozen=True)
class TrainerConfig:
    """The loop's own numbers, gathered by the composition root from the sections they come from."""

    steps: int
    prompts_per_step: int
    seed: int = 0
    passes: int = 1
    minibatches: int = 1
    old_logprobs: str = "recompute"
    mask_truncated: bool = False
    checkpoint_every: int = 0
    eval_every: int = 0
    grace_seconds: float = 30.0


@dataclass(frozen=True)
class StepResult:
    """What one step did: its number (from 1), metrics by declared key, and the groups it learned from."""

    step: int
    metrics: dict[str, float]
    groups: tuple[Group, ...]
    batch: TrainBatch


@dataclass
class Trainer:
    """Algorithm 1 of DeepSeekMath, one policy step at a time. All that changes is `state` and the learner."""

    config: TrainerConfig
    engine: RolloutEngine
    learner: Learner
    scorer: Scorer
    stream: Stream
    advantage: Advantage
    aggregation: Callable[[TrainBatch], Tensor]
    state: TrainerState
    recorder: Recorder | None = None
    checkpoints: Checkpoints | None = None
    evaluator: Callable[[int], dict[str, float]] | None = None
    observers: tuple[Callable[[StepResult], None], ...] = ()
    environment: dict[str, object] | None = None

    def train(self) -> str | None:
        """Run the steps that are left. Returns the name of the signal that stopped the run early, or None."""
        with StopSignals(self.config.grace_seconds) as signals:
            try:
                while self.state.step < self.config.steps and signals.requested is None:
                    result = self.step()
                    with signals.unabandoned():
                        self.finish(result, stopping=signals.requested is not None)
            except StepAbandonedError:
                pass
            return signals.requested.name if signals.requested else None

    def step(self) -> StepResult:
        """One policy step: DeepSeekMath (arXiv:2402.03300), Algorithm 1, lines 5-11."""
        started = time.perf_counter()
        metrics = Metrics()
        self.engine.follow(Policy(self.learner.policy(), self.learner.version))  # 6   pi_old <- pi_theta
        groups, cursor = self.collect(metrics)  # 5, 7, 8   prompts, G completions each, rewards
        batch = self.streams(collate(groups, mask_truncated=self.config.mask_truncated), metrics)
        batch = batch.with_advantages(self.advantage(batch))  # 9   one advantage per token
        observe_batch(metrics, batch)
        skipped = self.state.skipped_in_a_row
        with timer(metrics, "update"):
            for number, minibatch in enumerate(self.minibatches(batch)):  # 10   mu passes
                weighted = minibatch.with_weights(
                    self.aggregation(minibatch)
                )  # denominators of this update, once, here
                update = self.learner.update(weighted)  # 11   maximise the objective
                metrics.merge(update.metrics)
                skipped = skipped + 1 if update.skipped else 0
                if update.skipped:
                    self.refuse(weighted, number, update.reason, skipped)
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            cursor=cursor,
            draw=self.state.draw + 1,
            skipped_in_a_row=skipped,
            seconds=self.state.seconds + time.perf_counter() - started,
        )
        return StepResult(self.state.step, self.summary(metrics, started), tuple(groups), batch)

    def collect(self, metrics: Metrics) -> tuple[list[Group], int]:
        """Draw prompts, sample a group for each, score it, and leave out groups with too few valid completions."""
        prompts, cursor = self.stream.take(self.state.cursor, self.config.prompts_per_step)
        with timer(metrics, "rollout"):
            groups = self.engine.generate(prompts, draw=self.state.draw)
        with timer(metrics, "reward"):
            groups = self.scorer.score(groups, self.state.step)
        usable = [group for group in groups if sum(s.valid for s in group.scores) >= self.advantage.least_valid]
        observe_groups(metrics, groups, dropped=len(groups) - len(usable))
        if not usable:
            raise TrainingError(
                f"step {self.state.step + 1}: none of {len(groups)} groups has the {self.advantage.least_valid} valid "
                "completions an advantage needs. The rewards' faults are in the message above or in rollouts/."
            )
        return usable, cursor

    def streams(self, batch: TrainBatch, metrics: Metrics) -> TrainBatch:
        """The reference's stream, and the old policy's where more than one update makes the ratio leave 1."""
        with timer(metrics, "reference"):
            batch = self.learner.reference_streams(batch)
        if self.config.passes * self.config.minibatches == 1:
            return batch  # ratio 1 by construction: no pass needed
        if self.config.old_logprobs == "rollout":
            return batch.having(old_logprobs=batch.rollout_logprobs)
        with timer(metrics, "old"):
            return batch.having(old_logprobs=self.learner.old_logprobs(batch))

    def minibatches(self, batch: TrainBatch) -> Iterator[TrainBatch]:
        """The updates of this step: `passes` times over the batch, in `minibatches` pieces of whole groups."""
        for index in range(self.config.passes):
            yield from minibatches(batch, self.config.minibatches, self.config.seed, self.state.step, index)

    def refuse(self, batch: TrainBatch, number: int, reason: str, in_a_row: int) -> None:
        """Keep the batch of a skipped update; stop the run at the third in a row, with a diagnosis."""
        where = "not kept: this run has no directory"
        if self.recorder is not None:
            where = str(self.recorder.incident(self.state.step + 1, number, batch, reason))
        if in_a_row >= SKIPPED_IN_A_ROW_LIMIT:
            raise TrainingError(
                f"{in_a_row} updates in a row were skipped, the last at step {self.state.step + 1}: {reason}\n"
                f"The batch: {where}\n"
                "The weights are those before the first of them. What usually helps, in this order: a smaller "
                "learner.learning_rate; rewards within [-1, 1]; model.dtype = 'float32'; a larger kl.coef."
            )

    def summary(self, metrics: Metrics, started: float) -> dict[str, float]:
        """The step's metrics by declared key."""
        seconds = time.perf_counter() - started
        metrics.add("step", float(self.state.step))
        metrics.add("prompts_seen", float(self.state.cursor))
        metrics.add("epoch", self.stream.epoch(self.state.cursor))
        metrics.add("seconds", seconds)
        result = metrics.result()
        result["tokens_per_second"] = result["tokens"] / seconds
        return result

    def finish(self, result: StepResult, stopping: bool = False) -> None:
        """After a step: evaluate, record, checkpoint (where one is due, or the run ends), tell the observers."""
        last = result.step == self.config.steps
        every = self.config.eval_every
        if self.evaluator is not None and every and (result.step % every == 0 or last):
            result.metrics.update(self.evaluator(result.step))
        if self.recorder is not None:
            written = self.recorder.record(result.step, result.groups, result.batch, result.metrics)
            self.state = replace(self.state, metrics_bytes=written)
        due = self.config.checkpoint_every and result.step % self.config.checkpoint_every == 0
        if self.checkpoints is not None and (due or last or stopping):
            if self.recorder is not None:
                self.recorder.sync()
            self.checkpoints.save(self.learner, self.state, self.environment or {})
        for observer in self.observers:
            observer(result)
