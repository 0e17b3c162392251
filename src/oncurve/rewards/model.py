"""Rewards that a network gives: `model` judges a completion as a whole, `process_model` each of its steps.

The network is a transformers classifier with a tokenizer of its own; it runs in this process, in batches. Without a
`path` it is the run's own, of `[reward_model]`, as it is at that moment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from oncurve.errors import ConfigError
from oncurve.rewards.settings import Accepts, InProcess, RewardSettings, Runner
from oncurve.steps import splitter_of

if TYPE_CHECKING:
    from oncurve.models.classifier import Classifier, Encoded

__all__ = ["ModelReward", "NetworkRunner", "ProcessModelReward"]

log = logging.getLogger("oncurve.rewards")


class NetworkReward(RewardSettings):
    """What both kinds have: where the network is, and how it runs.

    path     a directory in Hugging Face form, or a hub id; none: the run's own, of [reward_model]
    label    which label's log-odds are the reward, for a network that has several, by name or number
    dtype    what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device   "auto": cuda where there is one
    """

    verifies: ClassVar[bool | None] = False
    head: ClassVar[Literal["outcome", "process"]] = "outcome"
    path: str | None = None
    label: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _of_a_path(self) -> NetworkReward:
        for key in ("label", "dtype", "device"):
            if self.path is None and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: without a path the run's own reward model judges, as [reward_model] says")
        return self

    def start(self, base: Path | None) -> Runner:
        """The network, loaded; of the run's own the place that it will be put in. Raises ModelError."""
        runner = NetworkRunner(self.head, self._values(base))
        if self.path is not None:
            from oncurve.models.judges import load_classifier  # torch and transformers: not in workers

            where = str(base / self.path) if base is not None and (base / self.path).exists() else self.path
            runner.classifier = load_classifier(
                where, self.head, label=self.label, dtype=self.dtype, device=self.device, section="rewards"
            )
        return runner

    def _values(self, base: Path | None) -> _Values:
        """What becomes of a batch of texts."""
        raise TypeError(f"{type(self).__name__} does not say what it makes of texts")


class ModelReward(NetworkReward):
    """A sequence classifier's verdict on prompt and completion: its only logit, or the log-odds of one of its labels.

    path     a directory in Hugging Face form, or a hub id; none: the run's own, of [reward_model]
    label    which label's log-odds are the reward, for a network that has several, by name or number
    dtype    what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device   "auto": cuda where there is one
    """

    judges_steps: ClassVar[bool] = False

    @property
    def default_name(self) -> str:
        """As its kind."""
        return "model"

    def _values(self, base: Path | None) -> _Values:
        return _outcomes


class ProcessModelReward(NetworkReward):
    """A token classifier's verdict on each step of a completion: how likely it is right, in 0 ... 1.

    path     a directory in Hugging Face form, or a hub id; none: the run's own, of [reward_model]
    label    which label says "right", for a network that has other than two; by name or number
    dtype    what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device   "auto": cuda where there is one
    split    where the steps of a completion end: "newline", a pattern between slashes, or a function of yours
    whole    what a completion is worth as a whole, for the log and for outcome supervision: its "min", "mean", "last"
             or "product" of steps
    """

    head: ClassVar[Literal["outcome", "process"]] = "process"
    split: str = "newline"
    whole: Literal["min", "mean", "last", "product"] = "min"

    @field_validator("split")
    @classmethod
    def _splits(cls, split: str) -> str:
        if ":" not in split or split.startswith("/"):
            try:
                splitter_of(split)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return split

    @property
    def default_name(self) -> str:
        """As its kind."""
        return "process_model"

    def _values(self, base: Path | None) -> _Values:
        splitter = splitter_of(self.split, base)
        whole = WHOLE[self.whole]

        def values(classifier: Classifier, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
            """Each completion's steps, and what it is worth as a whole."""
            texts = [_text_of(completion) for _, completion in pairs]
            ends = [splitter(text) for text in texts]
            read = [
                _read(classifier, prompt, completion, offsets) if offsets else None
                for (prompt, completion), offsets in zip(pairs, ends, strict=True)
            ]
            found = iter(classifier.judge([text for text in read if text is not None]))
            return [
                _stepwise(offsets, next(found) if text is not None else None, whole)
                for text, offsets in zip(read, ends, strict=True)
            ]

        return values


WHOLE: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda steps: math.fsum(steps) / len(steps),
    "last": lambda steps: steps[-1],
    "product": math.prod,
}

_Values = Callable[["Classifier", Sequence[tuple[Any, Any]]], list[Any]]
"""Network and (prompt, completion) pairs -> a reward each, None where the text is longer than the network reads."""


class NetworkRunner(InProcess):
    """Applies a classifier, once there is one, to a batch of completions at a time."""

    def __init__(self, head: Literal["outcome", "process"], values: _Values) -> None:
        super().__init__(self._judge, Accepts(batch=True))
        self.head = head
        self.classifier: Classifier | None = None
        self._of = values

    def _judge(self, item: Mapping[str, Any]) -> dict[str, Any]:
        if self.classifier is None:
            raise ConfigError(
                f'rewards: kind = "{_KIND[self.head]}" without a path judges with the run\'s own [reward_model]'
            )
        pairs = list(zip(item["prompts"], item["completions"], strict=True))
        return {"rewards": self._of(self.classifier, pairs), "metrics": {}, "extras": {}}


_KIND = {"outcome": "model", "process": "process_model"}


def _outcomes(classifier: Classifier, pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    read = [_read(classifier, prompt, completion, ()) for prompt, completion in pairs]
    found = iter(classifier.judge([text for text in read if text is not None]))
    return [None if text is None else next(found)[0] for text in read]


def _read(classifier: Classifier, prompt: Any, completion: Any, offsets: Sequence[int]) -> Encoded | None:
    from oncurve.models.classifier import OverlongError

    try:
        return classifier.encode(prompt, completion, offsets)
    except OverlongError as error:
        log.warning("a completion has no reward of the reward model: %s", error)
        return None


def _text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _stepwise(
    offsets: Sequence[int], steps: Sequence[float] | None, whole: Callable[[Sequence[float]], float]
) -> dict[str, Any] | float | None:
    if not offsets:
        return 0.0  # nothing was written, and that is no right step
    if steps is None:
        return None
    return {"reward": whole(steps), "step_ends": list(offsets), "step_rewards": list(steps)}
