"""The callbacks of a trainer: transformers' hooks, state and control, around the steps of a run.

A step of a run is one rollout with its updates, and TRL counts updates: `state.global_step` grows by the updates of a
step, and `on_step_begin` and `on_step_end` are called once for all of them. Called are on_init_end, on_train_begin,
on_epoch_begin, on_step_begin, on_step_end, on_log, on_evaluate, on_save, on_epoch_end and on_train_end, in TRL's order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from oncurve.base.errors import ConfigError
from oncurve.compat.trl.config import GRPOConfig
from oncurve.compat.trl.logs import LogLine, averaged, step_logs, tokens_of
from oncurve.run import Run
from oncurve.trainer import StepResult

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
        for callback in self.callbacks:
            returned = getattr(callback, event)(
                self.args,
                self.state,
                self.control,
                model=self.model,
                processing_class=self.run.loaded.tokenizer,
                optimizer=None,
                lr_scheduler=None,
                train_dataloader=None,
                eval_dataloader=None,
                **more,
            )
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
        """Return log an evaluation, call on_evaluate with it, and return the metrics as they are logged."""
        metrics = {**metrics, "eval_num_tokens": float(self._tokens)}
        self.log(metrics)
        metrics["epoch"] = self.state.epoch
        self.call("on_evaluate", metrics=dict(metrics))
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
