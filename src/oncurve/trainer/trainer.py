"""The loop: Algorithm 1 of DeepSeekMath (arXiv:2402.03300), whose line numbers stand in the comments.

 1  policy model π_θ ← π_θ_init
 2  for iteration = 1, ..., I do
 3      reference model π_ref ← π_θ
 4      for step = 1, ..., M do
 5          Sample a batch D_b from D
 6          Update the old policy model π_θ_old ← π_θ
 7          Sample G outputs {o_i} ~ π_θ_old(· | q) for each question q ∈ D_b
 8          Compute rewards {r_i} for each sampled output o_i by running r_φ
 9          Compute Â_i,t for the t-th token of o_i through group relative advantage estimation
10          for GRPO iteration = 1, ..., μ do
11              Update the policy model π_θ by maximizing the GRPO objective
12      Update r_φ through continuous training using a replay mechanism

The loop is the same for every algorithm: advantage, objective, KL and aggregation are components handed to it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from oncurve.base.errors import OncurveError
from oncurve.batching import collate, minibatches
from oncurve.learner import Learner
from oncurve.metrics import Metrics
from oncurve.trainer.credit import Credit, credited, weighted_by
from oncurve.trainer.groups.source import Groups
from oncurve.trainer.old_policy import OldPolicy
from oncurve.trainer.outer import HeldOut, OuterLoop
from oncurve.trainer.saving.checkpoint import Checkpoints
from oncurve.trainer.saving.recorder import Recorder, Refusals
from oncurve.trainer.state import Collected, StepResult, TrainerState
from oncurve.trainer.updates import Updates
from oncurve.trainer.watching.observe import (
    UntrainedUpdates,
    observe_batch,
    observe_memory,
    recording_tokens,
    split_advantages,
    summarized,
    timer,
)
from oncurve.trainer.watching.signals import StopSignals
from oncurve.types import Group, TrainBatch


@dataclass(frozen=True)
class TrainerConfig:
    """The loop's own numbers, gathered by the composition root from the sections they come from."""

    steps: int
    seed: int = 0
    ppo_epochs: int = 1
    minibatches: int = 1
    target_kl: float | None = None
    old_policy: OldPolicy = field(default_factory=OldPolicy)
    mask_truncated: bool = False
    checkpoint_every: int = 0
    held_out: HeldOut = field(default_factory=HeldOut)
    grace_seconds: float = 30.0
    max_minutes: float | None = None
    environment: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Trainer:
    """Algorithm 1, one policy step at a time. Only `state`, the learner and the outer loop change."""

    config: TrainerConfig
    groups: Groups
    learner: Learner
    credit: Credit
    outer: OuterLoop
    state: TrainerState
    recorder: Recorder | None = None
    checkpoints: Checkpoints | None = None
    evaluator: Callable[[int], dict[str, float]] | None = None
    observers: tuple[Callable[[StepResult], None], ...] = ()
    on_start: Callable[[dict[str, float]], None] = lambda metrics: None
    untrained: UntrainedUpdates = field(default_factory=UntrainedUpdates)
    refusals: Refusals = field(default_factory=Refusals)
    _settled: tuple[int, int] | None = None

    def train(self) -> str | None:
        """Run the steps that are left. Returns the signal or the setting that stopped the run before its end, or None.

        Whatever ends it, a checkpoint has the last finished step afterwards, unless weights have begun to change since.
        Raises DiskError: the disk refuses this last checkpoint. Earlier ones that it refuses are tried again.
        """
        self.settle()
        stops = StopSignals(self.config.grace_seconds, self.config.max_minutes)
        with stops as signals, signals.at_the_end(self.save), self.groups:
            self.evaluate_first()
            signals.limit.steps_begin()
            while not self.is_done and signals.allow_a_step:  # 4   for step = 1, ..., M
                self.outer.before_step(self.state)  # 2, 3   at the start of an iteration: π_ref ← π_θ
                self.settle()
                result = self.step()  # 5-11
                result = self.maybe_evaluate(self.outer.after_step(result))  # 12   at its end: the reward model
                with signals.unabandoned():
                    self.finish(result, now=signals.checkpoint_wanted())
        return signals.stopped_by(self.is_done)

    @property
    def is_done(self) -> bool:
        """Return whether no step is left, or `held_out` ends the run early."""
        return self.state.step >= self.config.steps or self.config.held_out.ends(self.state)

    def settle(self) -> None:
        """Note that everything is as the last finished step left it, and recorded: a checkpoint may be written."""
        self._settled = (self.state.step, self.learner.changes)

    def step(self) -> StepResult:
        """Return one policy step: lines 5 to 11."""
        started, metrics, before = time.perf_counter(), Metrics(), self.groups.worked()
        updates = self.updates(metrics)
        self.groups.follow(self.learner.weights(), self.state.step)  # 6   π_θ_old ← π_θ
        collected = self.collect(metrics)  # 5, 7, 8   prompts, G completions of each, their rewards
        batch = self.score(collected.usable, metrics)  # old and reference log-probs, values, a KL in the reward
        batch = credited(batch, self.credit.advantage)  # 9   one advantage per token
        advantages = self.record(collected, batch, metrics)
        with recording_tokens(self.recorder, batch, collected, self.learner, metrics), timer(metrics, "update"):
            for minibatch in self.minibatches(batch, metrics):  # 10   μ PPO epochs
                weighted = weighted_by(self.credit.aggregation, minibatch)  # global denominators, once
                update = self.learner.update(weighted)  # 11   maximize the objective
                updates.add(weighted, update, self.learner.version)
                if updates.too_far:
                    break
            updates.leave_out(self.config.ppo_epochs * min(self.config.minibatches, len(batch.prompts)))
        self.state = self.advanced(batch, collected, updates, time.perf_counter() - started)
        summary = summarized(metrics, self.state, self.groups.epoch, started, self.groups.worked(before or 0.0))
        return StepResult(self.state.step, summary, collected.groups, advantages)

    def updates(self, metrics: Metrics) -> Updates:
        """Collect the results of the next step's updates."""
        state, target = self.state, self.config.target_kl
        return Updates(state.step + 1, self.learner.version, state.skipped_in_a_row, metrics, self.recorder, target)

    def collect(self, metrics: Metrics) -> Collected:
        """Return the groups of the next step, with their rewards; those of a step that fails are written down."""
        try:
            return self.groups.next(self.state, metrics)
        except OncurveError:
            self.write_down(self.groups.unfinished)
            self.written_down()
            raise

    def score(self, groups: Sequence[Group], metrics: Metrics) -> TrainBatch:
        """Return the batch of usable groups with log-probs and values; a KL in the reward is in its rewards."""
        settings, measured = self.config, self.recorder is not None and self.recorder.measures(self.state.step + 1)
        batch = collate(groups, mask_truncated=settings.mask_truncated)
        with timer(metrics, "score"):
            batch = settings.old_policy.score(batch, self.learner, self.groups.exact, metrics, measured)
        batch = self.credit.entropy.with_coef(batch, self.state, metrics)
        return self.credit.kl.add_kl_to_rewards(batch, self.state.kl_coef, metrics)

    def minibatches(self, batch: TrainBatch, metrics: Metrics) -> Iterator[TrainBatch]:
        """Return the updates of this step: `ppo_epochs` times over the batch, in `minibatches` of whole groups."""
        for index in range(self.config.ppo_epochs):
            for minibatch in minibatches(batch, self.config.minibatches, self.config.seed, self.state.step, index):
                self.untrained.observe(metrics, minibatch, self.state.step + 1)
                yield minibatch

    def record(self, collected: Collected, batch: TrainBatch, metrics: Metrics) -> tuple[Tensor | None, ...]:
        """Return the advantages of each group; begins to record them, which the updates do not wait for."""
        observe_batch(metrics, batch)
        observe_memory(metrics, self.config.environment.get("device", "cpu"))
        advantages = split_advantages(batch, collected.groups, collected.usable)
        self.write_down(collected.groups, advantages)
        return advantages

    def write_down(self, groups: Sequence[Group], advantages: Sequence[Tensor | None] = ()) -> None:
        """Begin to write the groups of the next step into the run's directory, if it has one."""
        if self.recorder is not None:
            self.recorder.rollouts(self.state.step + 1, groups, advantages or [None] * len(groups))

    def written_down(self) -> None:
        """Wait until the groups are written."""
        if self.recorder is not None:
            self.recorder.finish_rollouts()

    def advanced(self, batch: TrainBatch, collected: Collected, updates: Updates, seconds: float) -> TrainerState:
        """Return the state after a step on `batch`."""
        state = replace(
            self.state,
            step=self.state.step + 1,
            cursor=collected.cursor,
            draw=collected.draw,
            surplus=collected.surplus,
            counts=collected.counts,
            skipped_in_a_row=updates.skipped,
            kl_coef=self.credit.kl.next(batch, self.state.kl_coef),
            seconds=self.state.seconds + seconds,
        )
        return self.credit.entropy.after(state, updates.metrics.result().get("policy/entropy"))

    def evaluate_first(self) -> None:
        """Evaluate the policy before step 1, where `held_out` wants it, as step 0 of the metrics."""
        if self.evaluator is not None and self.config.held_out.at_start and self.state.step == 0:
            metrics = {"step": 0.0, **self.evaluator(0)}
            self.state = self.config.held_out.after(self.state, metrics)
            self.write_metrics(metrics)
            self.settle()
            self.on_start(metrics)

    def maybe_evaluate(self, result: StepResult) -> StepResult:
        """Return the result with held-out metrics, where an evaluation is due."""
        if self.evaluator is not None and self.config.held_out.due(result.step, self.config.steps):
            with self.groups.paused():
                result.metrics.update(self.evaluator(result.step))
            self.state = self.config.held_out.after(self.state, result.metrics)
        return result

    def finish(self, result: StepResult, now: bool = False) -> None:
        """After a step: record it, write a checkpoint where one is due or wanted `now`, call the observers."""
        try:
            self.written_down()
        finally:  # whatever the disk refuses of them, a checkpoint may have this step
            self.write_metrics(result.metrics)
            self.settle()
        due = self.config.checkpoint_every and result.step % self.config.checkpoint_every == 0
        if now or due or self.state.best_step == result.step or self.refusals.waiting:
            self.refusals.checkpoint(self.save)
        self.refusals.tell(result.step)
        for observer in self.observers:
            observer(result)

    def write_metrics(self, metrics: dict[str, float]) -> None:
        """Write a line of metrics into the run's directory, if it has one."""
        if self.recorder is not None:
            metrics.update(self.refusals.metrics())
            self.state = replace(self.state, metrics_bytes=self.recorder.metrics(metrics))

    def save(self) -> None:
        """Write a checkpoint, unless the newest is of this step, or something has changed since the last whole one."""
        whole = self._settled == (self.state.step, self.learner.changes)
        if whole and self.checkpoints is not None and self.checkpoints.newest != self.state.step:
            if self.recorder is not None:
                self.recorder.sync()
            self.checkpoints.save(self.learner, self.outer, self.state, self.config.environment, self.groups)
