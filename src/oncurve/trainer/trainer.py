"""The loop. It knows no algorithm: advantages, objective, KL and aggregation are handed to it as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from oncurve.batching import collate, minibatches
from oncurve.errors import OncurveError, TrainingError
from oncurve.learner import Learner
from oncurve.metrics import Metrics
from oncurve.rollout import Policy, RolloutEngine, is_exact
from oncurve.trainer.checkpoint import Checkpoints
from oncurve.trainer.control import KLControl
from oncurve.trainer.credit import credited
from oncurve.trainer.diagnosis import divergence_explained, skipped_in_a_row
from oncurve.trainer.observe import (
    UntrainedUpdates,
    observe_batch,
    observe_groups,
    observe_processors,
    split_advantages,
    timer,
)
from oncurve.trainer.protocols import Advantage, Outer, Scorer, Scoring, Stream
from oncurve.trainer.recorder import Recorder
from oncurve.trainer.signals import StopSignals
from oncurve.trainer.state import TrainerState
from oncurve.types import Group, TokenWeights, TrainBatch

__all__ = ["StepResult", "Trainer", "TrainerConfig"]

SKIPPED_IN_A_ROW_LIMIT = 3  # one bad batch is bad luck; three in a row are a broken run


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
    """What one step did: its number (from 1), metrics by declared key, and every group it sampled.

    `advantages[g]` is `(n, T)` over the completions of `groups[g]`; None where the group was left out.
    """

    step: int
    metrics: dict[str, float]
    groups: tuple[Group, ...]
    advantages: tuple[Tensor | None, ...]


@dataclass
class Trainer:
    """Algorithm 1 of DeepSeekMath, one policy step at a time. All that changes is `state` and the learner."""

    config: TrainerConfig
    engine: RolloutEngine
    learner: Learner
    scorer: Scorer
    stream: Stream
    advantage: Advantage
    aggregation: Callable[[TrainBatch], Tensor | TokenWeights]
    kl: KLControl
    outer: Outer
    state: TrainerState
    recorder: Recorder | None = None
    checkpoints: Checkpoints | None = None
    evaluator: Callable[[int], dict[str, float]] | None = None
    observers: tuple[Callable[[StepResult], None], ...] = ()
    environment: dict[str, object] | None = None
    untrained: UntrainedUpdates = field(default_factory=UntrainedUpdates)
    _settled: tuple[int, int] | None = None

    def train(self) -> str | None:
        """Run the steps that are left. Returns the name of the signal that stopped the run early, or None.

        Whatever ends it, the last finished step is in a checkpoint then, unless weights have begun to change since.
        """
        self.settle()
        with StopSignals(self.config.grace_seconds) as signals, signals.at_the_end(self.save):
            while self.state.step < self.config.steps and signals.requested is None:  # 4   for step = 1 ... M
                self.outer.begin(self.state)  # 2, 3   where an iteration begins: pi_ref <- pi_theta
                self.settle()
                result = self.judge(self.outer.end(self.step()))  # 5-11; 12   where it ends: the reward model
                with signals.unabandoned():
                    self.finish(result)
        return signals.requested.name if signals.requested else None

    def settle(self) -> None:
        """Everything is as the last finished step left it, and recorded: a checkpoint may be written."""
        self._settled = (self.state.step, self.learner.changes)

    def step(self) -> StepResult:
        """One policy step: DeepSeekMath (arXiv:2402.03300), Algorithm 1, lines 5-11."""
        started = time.perf_counter()
        metrics = Metrics()
        self.engine.follow(Policy(self.learner.policy(), self.learner.version))  # 6   pi_old <- pi_theta
        groups, cursor = self.collect(metrics)  # 5, 7, 8   prompts, G completions each, rewards
        usable = [group for group in groups if self.is_usable(group)]
        batch = self.streams(collate(usable, mask_truncated=self.config.mask_truncated), metrics)
        batch = self.kl.penalise(batch, self.state.kl_coef, metrics)
        batch = credited(batch, self.advantage)  # 9   one advantage per token
        observe_batch(metrics, batch)
        advantages = split_advantages(batch, groups, usable)
        if self.recorder is not None:  # before a weight changes: a full disk costs no step that was learned from
            self.recorder.rollouts(self.state.step + 1, groups, advantages)
        skipped, version = self.state.skipped_in_a_row, self.learner.version
        with timer(metrics, "update"):
            for number, minibatch in enumerate(self.minibatches(batch)):  # 10   mu passes
                self.untrained.observe(metrics, minibatch, self.state.step + 1)
                weighted = minibatch.with_weights(self.aggregation(minibatch))  # denominators, once, here
                moved = self.learner.version != version
                update = self.learner.update(weighted)  # 11   maximise the objective
                metrics.merge(update.metrics, off_policy=moved)
                skipped = skipped + 1 if update.skipped else 0
                if update.skipped:
                    self.refuse(weighted, number, update.reason, skipped)
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            cursor=cursor,
            draw=self.state.draw + 1,
            skipped_in_a_row=skipped,
            kl_coef=self.kl.next(batch, self.state.kl_coef),
            seconds=self.state.seconds + time.perf_counter() - started,
        )
        return StepResult(self.state.step, self.summary(metrics, started), tuple(groups), advantages)

    def collect(self, metrics: Metrics) -> tuple[list[Group], int]:
        """Draw prompts, sample a group for each, and score it; the groups, and the cursor after them."""
        step = self.state.step
        prompts, cursor = self.stream.take(self.state.cursor, self.config.prompts_per_step)
        with self.scorer.begin(step) as scoring:
            with timer(metrics, "rollout"), divergence_explained(step):
                groups = self.engine.generate(prompts, self.state.draw, on_group=scoring.submit)
            return self.score(groups, scoring, metrics), cursor

    def score(self, groups: list[Group], scoring: Scoring, metrics: Metrics) -> list[Group]:
        """The groups with the scores that `scoring` began while they were sampled; at least one of them is usable."""
        step = self.state.step + 1
        try:
            with timer(metrics, "reward"):
                groups = scoring.finish(groups)
            usable = sum(self.is_usable(group) for group in groups)
            observe_groups(metrics, groups, dropped=len(groups) - usable)
            if not usable:
                raise TrainingError(
                    f"step {step}: none of the {len(groups)} groups has the {self.advantage.least_valid} valid "
                    "completions that an advantage needs. What went wrong with each is in rollouts/."
                )
        except OncurveError:
            if self.recorder is not None:
                self.recorder.rollouts(step, groups, [None] * len(groups))  # what the rewards stumbled over
            raise
        metrics.add("seconds_reward_overlapped", scoring.overlapped_seconds)
        for name, value in scoring.metrics.items():
            metrics.add(f"reward/{name}", value)
        return groups

    def is_usable(self, group: Group) -> bool:
        """Whether the group has the valid completions that an advantage needs."""
        return sum(score.valid for score in group.scores) >= self.advantage.least_valid

    def streams(self, batch: TrainBatch, metrics: Metrics) -> TrainBatch:
        """The reference's stream, and the old policy's wherever the ratio to it can leave 1.

        The old policy is the one that sampled. Of completions by the present weights the learner computes its log-probs
        (or the recorded ones are taken, `old_logprobs` = "rollout"); of older ones only the recorded ones are left.
        """
        with timer(metrics, "reference"):
            batch = self.learner.reference_streams(batch)
        assert batch.policy_versions is not None  # collate has filled them in
        present = batch.policy_versions == self.learner.version
        if self.config.passes * self.config.minibatches == 1 and is_exact(self.engine) and bool(present.all()):
            return batch  # ratio 1 up to rounding: no pass needed
        if self.config.old_logprobs == "rollout" or not bool(present.any()):
            return batch.having(old_logprobs=batch.rollout_logprobs)
        with timer(metrics, "old"):
            old = self.learner.old_logprobs(batch)
        if not bool(present.all()):
            assert batch.rollout_logprobs is not None
            old = torch.where(present[:, None], old.to(batch.rollout_logprobs.dtype), batch.rollout_logprobs)
        return batch.having(old_logprobs=old)

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
            raise skipped_in_a_row(in_a_row, self.state.step + 1, reason, where)

    def summary(self, metrics: Metrics, started: float) -> dict[str, float]:
        """The step's metrics by declared key."""
        seconds = time.perf_counter() - started
        metrics.add("step", float(self.state.step))
        metrics.add("prompts_seen", float(self.state.cursor))
        metrics.add("epoch", self.stream.epoch(self.state.cursor))
        metrics.add("seconds", seconds)
        observe_processors(metrics)
        result = metrics.result()
        result["tokens_per_second"] = result["tokens"] / seconds
        return result

    def judge(self, result: StepResult) -> StepResult:
        """The result with held-out metrics, where an evaluation is due."""
        every = self.config.eval_every
        if self.evaluator is not None and every and (result.step % every == 0 or result.step == self.config.steps):
            result.metrics.update(self.evaluator(result.step))
        return result

    def finish(self, result: StepResult) -> None:
        """After a step: record it, write a checkpoint where one is due, tell the observers."""
        if self.recorder is not None:
            self.state = replace(self.state, metrics_bytes=self.recorder.metrics(result.metrics))
        self.settle()
        if self.config.checkpoint_every and result.step % self.config.checkpoint_every == 0:
            self.save()
        for observer in self.observers:
            observer(result)

    def save(self) -> None:
        """Write a checkpoint, unless the newest is of this step, or something has changed since the last whole one."""
        whole = self._settled == (self.state.step, self.learner.changes)
        if whole and self.checkpoints is not None and self.checkpoints.newest != self.state.step:
            if self.recorder is not None:
                self.recorder.sync()
            self.checkpoints.save(self.learner, self.outer, self.state, self.environment or {})
