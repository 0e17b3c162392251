"""The forms of `reward_funcs` as rewards of a run: functions of TRL's signature, and reward models by path."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import AutoTokenizer

from oncurve.base.errors import ConfigError, RewardError, shown
from oncurve.compat.trl.rewards import BY_PATH
from oncurve.models.loading import apply_template
from oncurve.rewards import Accepts, InProcess, RewardSettings, awaited, name_of, unpickled


class Function(RewardSettings):
    """A reward function of TRL's, called in this process with all that TRL gives it, one call per step.

        function(prompts=, completions=, completion_ids=, <every column>=, trainer_state=, log_extra=, log_metric=)

    It returns a number, or None where it does not apply, per completion; NaN is None. What it raises ends the run, as
    in TRL. A coroutine function is awaited.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False

    function: Any = Field(exclude=True, repr=False)
    """The function."""

    state: Any = Field(exclude=True, repr=False)
    """A function of no arguments that gives `trainer_state`."""

    on_error: Literal["mask", "raise"] | float = "raise"
    """What a value that is no number means."""

    @property
    def default_name(self) -> str:
        """The name of the function, or of its class; "reward" for a lambda."""
        return name_of(self.function)

    def start(self, base: Path | None) -> InProcess:
        """Return the runner, in this process."""
        takes = ("prompts", "completions", "completion_ids", *(["environments"] if self._looks_at_them() else []))
        accepts = Accepts(batch=True, takes=takes, everything=True)
        return InProcess(self._call, accepts, "reward_funcs are called as TRL calls them")

    def _looks_at_them(self) -> bool:
        """Return whether the function names environments among its parameters, or in its code."""
        code = getattr(self.function, "__code__", None)
        with suppress(TypeError, ValueError):
            return "environments" in (*inspect.signature(self.function).parameters, *getattr(code, "co_consts", ()))
        return False

    def _call(self, item: Mapping[str, Any]) -> dict[str, Any]:
        metrics: dict[str, list[float]] = {}
        extras: dict[str, list[Any]] = {}
        environments = [unpickled(each) for each in item.get("environments") or ()]
        given = {
            **item["columns"],
            "prompts": item["prompts"],
            "completions": item["completions"],
            "completion_ids": item["completion_ids"],
            **({"environments": environments} if environments else {}),
            "trainer_state": self.state(),
            "log_metric": lambda name, value: metrics.setdefault(str(name), []).append(float(value)),
            "log_extra": lambda name, values: extras.setdefault(str(name), []).extend(values),
        }
        try:
            values = awaited(self.function(**given))
            rewards = [_value(value) for value in values]
        except Exception as error:  # user code may raise anything
            raise RewardError(f"reward {self.default_name} failed: {type(error).__name__}: {error}") from error
        return {"rewards": rewards, "metrics": metrics, "extras": extras}


class LoadedClassifier:
    """A reward model in memory as a reward function: its one logit at the end of prompt and completion."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, source = model.eval(), getattr(model.config, "_name_or_path", "")
        self.__name__ = Path(source).name.replace("-", "_").replace(".", "_") or type(model).__name__
        if tokenizer is None and not source:
            raise ConfigError(f"reward_processing_classes: missing; give the tokenizer of the {type(model).__name__}")
        self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(source)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        model.config.pad_token_id = self.tokenizer.pad_token_id  # the model reads the logit before the padding

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **others: Any) -> list[float]:
        """Return the logits; of messages, those of their chat."""
        texts = [
            prompt + said
            if isinstance(prompt, str)
            else apply_template(self.tokenizer, [*prompt, *said], f"{self.__name__}: the")
            for prompt, said in zip(prompts, completions, strict=True)
        ]
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
        with torch.inference_mode():
            logits = self.model(**batch.to(self.model.device)).logits[:, 0]
        return [float(value) for value in logits]


def _value(value: Any) -> Any:
    """Return a reward as TRL reads it: NaN is None, does not apply."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def reward_settings(
    reward_funcs: Any,
    weights: Sequence[float] | None,
    state: Callable[[], Any],
    tokenizers: Sequence[Any],
    optional: bool = False,
) -> list[dict[str, Any] | RewardSettings]:
    """Return `reward_funcs` as the rewards of a run; functions get `state()` as `trainer_state`.

    `tokenizers`: of the models in memory among them. `optional`: an environment may give the reward.

    Raises ConfigError: there is none, a form that TRL does not take, or another number of weights.
    """
    listed = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    listed = [] if reward_funcs is None else listed
    if (reward_funcs is None or not listed) and not optional:
        raise ConfigError(
            "reward_funcs: No reward source provided; give a function, a reward model's folder or hub id, or a list"
        )
    if weights is not None and len(weights) != len(listed):
        raise ConfigError(f"reward_weights has {len(weights)} weights for {len(listed)} reward_funcs; give as many")
    given = zip(listed, weights or [1.0] * len(listed), tokenizers[: len(listed)], strict=True)
    return [_settings(each, weight, state, tokenizer) for each, weight, tokenizer in given]


def _settings(reward: Any, weight: float, state: Callable[[], Any], tokenizer: Any) -> dict[str, Any] | RewardSettings:
    if isinstance(reward, (str, Path)):
        return {"kind": "model", "path": str(reward), "weight": weight, "name": Path(reward).name}
    if hasattr(reward, "forward") and hasattr(reward, "config"):  # a transformers model
        reward = LoadedClassifier(reward, tokenizer)
    if inspect.isfunction(reward) and reward in BY_PATH:
        return {"kind": "python", "path": BY_PATH[reward], "weight": weight, "timeout_seconds": 600.0}
    if not callable(reward):
        raise ConfigError(f"reward_funcs: expected a function, or a model's folder or hub id; got {shown(reward)}")
    return Function(function=reward, state=state, weight=weight)
