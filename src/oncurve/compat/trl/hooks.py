"""The callbacks of a trainer: transformers' hooks, state and control, around the steps of a run.

A step of a run is one rollout with its updates, and TRL counts updates: `state.global_step` grows by the updates of a
step, and `on_step_begin` and `on_step_end` are called once for all of them. Called are on_init_end, on_train_begin,
on_epoch_begin, on_step_begin, on_step_end, on_log, on_evaluate, on_save, on_epoch_end and on_train_end, in TRL's order.

Metrics have TRL's names and definitions: rewards, lengths and endings from the groups; loss, gradient, KL, entropy and
clipping from oncurve's metrics. The KL is that before the first update of a generation. Not covered:
`clip_ratio/low_min` and `high_max` where some token is clipped, which are of single completions, and `eval_loss` with a
KL term or a bonus.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from oncurve.base.errors import ConfigError
from oncurve.batching import collate
from oncurve.compat.trl.config import GRPOConfig
from oncurve.metrics import METRICS
from oncurve.run import Run
from oncurve.trainer import StepResult
from oncurve.types import Completion, Group, Score, TokenStats

LogLine = dict[str, float | None]

NAMES = {metric.name: metric.trl for metric in METRICS.values() if metric.trl and metric.prefix is None}
"""TRL's name of each of oncurve's metrics that TRL has."""

FROM_METRICS = ("policy/loss", "optim/grad_norm", "optim/learning_rate", "policy/entropy", "time/step")
CLIPS = ("policy/clip_low", "policy/clip_high")
CLOSE = 1e-8


def step_logs(result: StepResult, run: Run) -> LogLine:
    """Return TRL's metrics of one step, and what reward functions have logged by `log_metric`."""
    metrics, config, steered = result.metrics, run.config, run.trainer.state.entropy_coef
    wanted = (*FROM_METRICS, *(("policy/kl",) if config.kl.coef else ()), "policy/weight_clip", *CLIPS)
    logs: LogLine = {NAMES[key]: metrics[key] for key in wanted if key in metrics}
    if all(key in metrics for key in CLIPS):
        low, high = (metrics[key] for key in CLIPS)
        logs["clip_ratio/region_mean"] = low + high
        logs |= {"clip_ratio/low_min": 0.0} if not low else {}
        logs |= {"clip_ratio/high_max": 0.0} if not high else {}
    if config.regularizer.rewards_entropy and "policy/entropy" in metrics:
        bonus = metrics.get("policy/entropy_coef", config.entropy.coef) * metrics["policy/entropy"]
        logs["policy_loss"] = metrics["policy/loss"] + bonus
        logs["entropy_coef"] = config.entropy.coef if steered is None else steered
    logs |= group_logs(result.groups)
    for reward in run.rewards.components:
        begin = f"rewards/{reward.name}/"
        logs |= {key.removeprefix(begin): value for key, value in metrics.items() if key.startswith(begin)}
    return logs


def group_logs(groups: Sequence[Group]) -> LogLine:
    """Return TRL's metrics of completions with their scores; None where a reward applied to none of them."""
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    logs: LogLine = dict(_lengths(completions))
    for name in dict.fromkeys(name for score in scores for name in score.parts):
        values = [value for score in scores if (value := score.parts.get(name)) is not None]
        logs[f"rewards/{name}/mean"], logs[f"rewards/{name}/std"] = _mean(values), _std(values)
    rewards = [score.reward for score in scores if score.valid]
    logs["reward"], logs["reward_std"] = _mean(rewards), _std(rewards)
    constant = [float(_is_constant(group.scores)) for group in groups for _ in group.completions]
    logs["frac_reward_zero_std"] = _mean(constant)
    return logs


def eval_loss(groups: Sequence[Group], run: Run) -> dict[str, float]:
    """Return the loss of an evaluation's completions at a ratio of 1.

    Nothing where it has a KL term or a bonus, or a group is of one completion, which has no advantage.
    """
    config = run.config
    alone = any(len(group.completions) < 2 for group in groups)
    if alone or config.kl.loss_coef or config.regularizer.rewards_entropy:
        return {}
    batch = collate(groups)
    batch = batch.having(old_logprobs=batch.rollout_logprobs)
    batch = batch.with_advantages(config.advantage(batch)).with_weights(config.loss_weights(batch))
    assert batch.rollout_logprobs is not None
    return {"loss": float(config.policy_term(TokenStats(batch.rollout_logprobs), batch).weighted(batch))}


def _lengths(completions: Sequence[Completion]) -> dict[str, float]:
    lengths = [float(len(completion.ids)) for completion in completions]
    ended = [float(len(completion.ids)) for completion in completions if completion.ended != "length"]
    whole = ended or [0.0]
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": (len(lengths) - len(ended)) / len(lengths),
        "completions/mean_terminated_length": sum(whole) / len(whole),
        "completions/min_terminated_length": min(whole),
        "completions/max_terminated_length": max(whole),
    }


def tokens_of(groups: Iterable[Group]) -> int:
    """Count the tokens of prompts and completions, which TRL adds up as `num_tokens`."""
    return sum(len(group.prompt.ids) + len(each.ids) for group in groups for each in group.completions)


def averaged(steps: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the means of several steps' metrics, over the steps that have a value; None where none has."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: _mean([value for step in steps if (value := step.get(name)) is not None]) for name in names}


def _is_constant(scores: Sequence[Score]) -> bool:
    deviation = _std([score.reward for score in scores if score.valid])
    return deviation is not None and deviation <= CLOSE


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for a single value, as TRL's NaN is logged."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


Logs = Mapping[str, Any]

PER_LOG = ("loss", "grad_norm", "learning_rate")
"""What only a line of steps has."""


@dataclass
class Hooks:
    """The state that callbacks read, the control that they ask by, and the log of the steps.

    model     the policy, as callbacks get it
    evaluate  evaluates the policy, logs it, and returns the metrics
    """

    args: GRPOConfig
    run: Run
    model: Any
    evaluate: Callable[[], Logs]
    callbacks: list[TrainerCallback] = field(default_factory=list)
    state: TrainerState = field(default_factory=TrainerState)
    control: TrainerControl = field(default_factory=TrainerControl)
    evaluated: Logs | None = None
    _since: list[LogLine] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)
    _began: float = 0.0
    _tokens: int = 0

    def add(self, callback: Any) -> None:
        """Add a callback, or a class of them. Raises ConfigError: it is none."""
        made = callback() if isinstance(callback, type) else callback
        if not isinstance(made, TrainerCallback):
            raise ConfigError(f"callbacks: expected a TrainerCallback of transformers, got {made!r:.60}")
        self.callbacks.append(made)

    def call(self, event: str, **more: Any) -> None:
        """Call a hook of every callback, in their order."""
        nothing = dict.fromkeys(("optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"))
        more |= {"model": self.model, "processing_class": self.run.loaded.tokenizer} | nothing
        for callback in self.callbacks:
            returned = getattr(callback, event)(self.args, self.state, self.control, **more)
            if returned is not None:
                self.control = returned

    def begin(self) -> None:
        """Begin before the first step, or the first one after a resume."""
        state = self.state
        state.max_steps = self.run.config.run.steps * self.run.config.updates_per_step
        self.count(self.run.trainer.state.step)
        state.logging_steps, state.save_steps = self.args.logging_steps, self.args.save_steps
        state.eval_steps = self.args.eval_steps or self.args.logging_steps
        state.train_batch_size = self.args.per_device_train_batch_size
        state.num_train_epochs = -(-int(state.max_steps) // self._updates_per_epoch())
        self._began, self.control.should_training_stop = time.perf_counter(), False
        self.call("on_train_begin")
        self.call("on_epoch_begin")
        self._next_step()

    def count(self, steps: int) -> None:
        """Set `state.global_step` to the updates of so many steps."""
        self.state.global_step = steps * self.run.config.updates_per_step

    def _updates_per_epoch(self) -> int:
        config = self.run.config
        return max(1, len(self.run.prompts) // config.data.prompts_per_step) * config.updates_per_step

    def _next_step(self) -> None:
        if self.control.should_training_stop:  # no step is left
            self.run.trainer.config = replace(self.run.trainer.config, steps=self.run.trainer.state.step)
        if not self.run.trainer.is_done:
            control = self.control
            control.should_log = control.should_evaluate = control.should_save = False
            self.call("on_step_begin")

    def step(self, result: StepResult) -> None:
        """Take a step that has ended: an observer of the trainer."""
        state, before = self.state, int(self.state.epoch or 0)
        self.count(result.step)
        state.epoch = result.metrics.get("progress/epoch", 0.0)
        state.num_input_tokens_seen = self._tokens = self._tokens + tokens_of(result.groups)
        self._since.append(step_logs(result, self.run))
        self._losses.append(result.metrics.get("policy/loss", 0.0))
        self.call("on_step_end")
        if self._log_is_due(result.step) or self.control.should_log:
            self.log({**averaged(self._since), "num_tokens": float(self._tokens)})
            self._since.clear()
        self._evaluated()
        self._saved(result.step)
        if self.control.should_epoch_stop:
            raise ConfigError("a callback set should_epoch_stop, which is refused; should_training_stop ends a run")
        if int(state.epoch) > before:
            self.call("on_epoch_end")
            self.call("on_epoch_begin")
        self._next_step()

    def _log_is_due(self, step: int) -> bool:
        strategy, every = self.args.logging_strategy, self.args.logging_steps
        if strategy == "no":
            return False
        if step == 1 and self.args.logging_first_step:
            return True
        if strategy == "epoch":
            every = self._updates_per_epoch()
        every = max(1, round(every * self.state.max_steps)) if every < 1 else int(every)
        done, updates = self.state.global_step, self.run.config.updates_per_step
        return bool(done // every > (done - updates) // every)

    def _evaluated(self) -> None:
        if self.evaluated is not None:
            self.log_evaluation(self.evaluated)
        elif self.control.should_evaluate:
            self.evaluate()
        self.evaluated = None

    def _saved(self, step: int) -> None:
        if self.control.should_save:
            self.run.trainer.save()
        checkpoints = self.run.trainer.checkpoints
        if checkpoints is not None and checkpoints.newest == step:
            self.call("on_save")

    def log(self, logs: Logs) -> None:
        """Add a line to `state.log_history`, and call on_log with it."""
        said = {**logs, "epoch": self.state.epoch}
        self.state.log_history.append({**said, "step": self.state.global_step})
        self.call("on_log", logs=dict(said))

    def log_evaluation(self, metrics: Logs) -> Logs:
        """Log an evaluation, call on_evaluate with it, note the best, and return the metrics as they are logged."""
        metrics = {**metrics, "eval_num_tokens": float(self._tokens)}
        self.log(metrics)
        metrics["epoch"] = self.state.epoch
        self.call("on_evaluate", metrics=dict(metrics))
        name, state = f"eval_{(self.args.metric_for_best_model or '').removeprefix('eval_')}", self.state
        if name in metrics and (state.best_metric is None or metrics[name] > state.best_metric):
            state.best_metric, state.best_global_step = metrics[name], state.global_step
        return metrics

    def end(self) -> dict[str, float]:
        """End after the last step, and return the summary that TRL logs."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        steps, config = len(self._losses), self.run.config
        rows = steps * config.data.prompts_per_step * config.rollout.group_size
        summary = {
            "train_runtime": seconds,
            "train_samples_per_second": rows / seconds,
            "train_steps_per_second": steps * config.updates_per_step / seconds,
            "total_flos": 0.0,
            "train_loss": sum(self._losses) / steps if steps else 0.0,
        }
        rest = {name: value for name, value in averaged(self._since).items() if name not in PER_LOG}
        rest |= {"num_tokens": float(self._tokens)} if self._since else {}
        self._since.clear()
        self.log({**summary, **rest})  # TRL logs what has gathered since the last line with its summary
        self.call("on_train_end")
        return summary
