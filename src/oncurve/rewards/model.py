"""Rewards by a network: `model` scores a completion as a whole, `process_model` each of its steps.

The network is a transformers classifier with a tokenizer of its own; it runs in this process, in batches. Without a
`path` it is the run's own reward model, of `[reward_model]`, with its weights at the time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from oncurve.base.errors import ConfigError
from oncurve.rewards.functions.callables import Accepts
from oncurve.rewards.settings import InProcess, RewardSettings, Runner, Split
from oncurve.steps import Splitter, splitter_of

if TYPE_CHECKING:
    from oncurve.models.classifiers import Classifier, Encoded

log = logging.getLogger("oncurve.rewards")


class NetworkReward(RewardSettings):
    """The fields of both kinds: where the network is, and how it runs."""

    verifies: ClassVar[bool | None] = False
    head: ClassVar[Literal["outcome", "process"]] = "outcome"
    path: str | None = None
    """A directory in Hugging Face form, or a hub id; none: the run's own, of `[reward_model]`."""

    label: str | None = None
    """For a network with several labels, by name or number: the label whose log-odds are the reward, or, of steps, the
    label that says "right"."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What it computes in: "float32", or "bfloat16", whose 8 bits hide small differences within a group."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; "auto": cuda where there is one."""

    @model_validator(mode="after")
    def _of_a_path(self) -> NetworkReward:
        for key in ("label", "dtype", "device"):
            if self.path is None and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: without a path the run's own reward model scores, by [reward_model]")
        return self

    @property
    def own_model(self) -> Literal["outcome", "process"] | None:
        """The run's own, where there is no `path`."""
        return self.head if self.path is None else None

    @property
    def network(self) -> tuple[str, str] | None:
        """The network at `path`."""
        return None if self.path is None else (self.path, self.dtype)

    def start(self, base: Path | None) -> Runner:
        """Return a runner with the network loaded; the run's own network is set later. Raises ModelError."""
        runner = NetworkRunner(self, self.splitter(base))
        if self.path is not None:
            from oncurve.models.classifiers import load_classifier  # torch and transformers: not in workers

            where = str(base / self.path) if base is not None and (base / self.path).exists() else self.path
            runner.classifier = load_classifier(
                where, self.head, label=self.label, dtype=self.dtype, device=self.device, section="rewards"
            )
        return runner

    def splitter(self, base: Path | None) -> Splitter | None:
        """Return what finds the steps that the network scores; None: it scores a completion as a whole."""
        return None

    def value(self, ends: Sequence[int], scores: Sequence[float]) -> Any:
        """Return the reward of a completion, from the network's scores of its steps, or its only score."""
        return scores[0]


class ModelReward(NetworkReward):
    """A sequence classifier's score of prompt and completion: its only logit, or the log-odds of one of its labels."""

    scores_steps: ClassVar[bool] = False
    default: ClassVar[str | None] = "model"


class ProcessModelReward(NetworkReward):
    """A token classifier's score of each step of a completion: the probability that it is right, in 0 ... 1."""

    head: ClassVar[Literal["outcome", "process"]] = "process"
    default: ClassVar[str | None] = "process_model"
    split: Split = "newline"
    """Where the steps of a completion end: "newline", a pattern between slashes, or a function of yours."""

    whole: Literal["min", "mean", "last", "product"] = "min"
    """The score of the whole completion, for the log and for outcome supervision: the "min", "mean", "last" or
    "product" of its steps."""

    def splitter(self, base: Path | None) -> Splitter:
        """Return the splitter of the setting `split`."""
        return splitter_of(self.split, base)

    def value(self, ends: Sequence[int], scores: Sequence[float]) -> Any:
        """Return the rewards of a completion's steps, and of the completion as a whole."""
        return {"reward": WHOLE[self.whole](scores), "step_ends": list(ends), "step_rewards": list(scores)}


WHOLE: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda steps: math.fsum(steps) / len(steps),
    "last": lambda steps: steps[-1],
    "product": math.prod,
}


class NetworkRunner(InProcess):
    """Applies a classifier, once there is one, to a batch of completions at a time."""

    def __init__(self, reward: NetworkReward, split: Splitter | None) -> None:
        super().__init__(self._score, Accepts(batch=True))
        self.head = reward.head
        self.classifier: Classifier | None = None
        self._reward, self._split = reward, split

    def _score(self, item: Mapping[str, Any]) -> dict[str, Any]:
        if self.classifier is None:
            raise ConfigError(
                f'rewards: kind = "{self._reward.default}" without a path scores with the run\'s own [reward_model]'
            )
        pairs = list(zip(item["prompts"], item["completions"], strict=True))
        ends = [None if self._split is None else self._split(_text_of(completion)) for _, completion in pairs]
        texts = [
            None if found == [] else _read(self.classifier, *pair, found or ())
            for pair, found in zip(pairs, ends, strict=True)
        ]
        lost = sum(text is None and found != [] for text, found in zip(texts, ends, strict=True))
        if lost:
            reads = (
                f"{self.classifier.name} reads {self.classifier.max_length} tokens, and with the prompt they have more"
            )
            log.warning("%s of %s completions have no reward of the reward model: %s", lost, len(texts), reads)
        scores = iter(self.classifier.score([text for text in texts if text is not None]))
        unread = [0.0 if found == [] else None for found in ends]  # an empty completion has no right step
        rewards = [
            without if text is None else self._reward.value(found or (), next(scores))
            for text, found, without in zip(texts, ends, unread, strict=True)
        ]
        return {"rewards": rewards, "metrics": {}, "extras": {}}


def _read(classifier: Classifier, prompt: Any, completion: Any, offsets: Sequence[int]) -> Encoded | None:
    """Return a text as the network reads it; None: it is too long."""
    from oncurve.models.classifiers import OverlongError

    try:
        return classifier.encode(prompt, completion, offsets)
    except OverlongError:
        return None


def _text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
