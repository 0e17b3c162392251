"""rlox's base classes of callbacks and loggers, and those that work for language models."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from oncurve.base.output import say


class Callback:
    """A callback without effect: override the hooks that you need. `on_step` ends the training by returning False."""

    def on_training_start(self, **about: Any) -> None:
        """Before the first step of `train`."""

    def on_step(self, **about: Any) -> bool:
        """After each step of `train`, with `reward`, `step` and `algo`."""
        return True

    def on_train_batch(self, **about: Any) -> None:
        """After each step, with `loss`, `mean_reward` and `kl`."""

    def on_training_end(self, **about: Any) -> None:
        """After the last step of `train`."""


class CallbackList(Callback):
    """Several callbacks as one; the training ends where one of them ends it, and each one is called."""

    def __init__(self, callbacks: Iterable[Any] | None = None) -> None:
        self.callbacks = list(callbacks or ())

    def on_training_start(self, **about: Any) -> None:
        """Call each."""
        for callback in self.callbacks:
            callback.on_training_start(**about)

    def on_step(self, **about: Any) -> bool:
        """Call each; return whether all go on."""
        answers = [callback.on_step(**about) for callback in self.callbacks]
        return all(answer is not False for answer in answers)

    def on_train_batch(self, **about: Any) -> None:
        """Call each."""
        for callback in self.callbacks:
            callback.on_train_batch(**about)

    def on_training_end(self, **about: Any) -> None:
        """Call each."""
        for callback in self.callbacks:
            callback.on_training_end(**about)


class EarlyStoppingCallback(Callback):
    """Ends the training after `patience` steps in which the reward has not exceeded its best by `min_delta`."""

    def __init__(self, patience: int = 10, min_delta: float = 0.0) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best_reward, self.wait = float("-inf"), 0

    def on_step(self, **about: Any) -> bool:
        """Return whether to go on."""
        reward = about.get("reward")
        if reward is None:
            return True
        better = reward > self.best_reward + self.min_delta
        self.best_reward = reward if better else self.best_reward
        self.wait = 0 if better else self.wait + 1
        return self.wait < self.patience


class LoggerCallback:
    """A logger without effect: override `on_train_step`."""

    def on_train_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """After each step: its number, from 1 on, and all metrics by name."""


class ConsoleLogger(LoggerCallback):
    """Prints every `log_interval` steps: the step, steps per second, and the mean reward."""

    def __init__(self, log_interval: int = 1000) -> None:
        self.log_interval, self._begun = log_interval, time.monotonic()

    def on_train_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print, if it is time to."""
        if step % self.log_interval == 0:
            seconds = time.monotonic() - self._begun
            per_second = step / seconds if seconds > 0 else 0.0
            say(f"step={step} | SPS={per_second:.0f} | reward={metrics['mean_reward']:.2f}")
