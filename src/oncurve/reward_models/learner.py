"""The learner of a reward model: a classifier, its optimizer, and the two kinds of examples that it is trained on.

outcome   preference pairs: the chosen completion's reward should exceed the rejected one's
process   labelled steps: the probability, at the end of each step, that the step is right

A reward of kind "model" or "process_model" scores with these very weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from oncurve.base.errors import DataError
from oncurve.components import Component
from oncurve.learner import MasterAdamW, Pace, Schedule, UpdateResult
from oncurve.losses import bradley_terry, step_cross_entropy
from oncurve.machine.in_order import lookups_in_order
from oncurve.metrics import Metrics
from oncurve.models import classifiers
from oncurve.models.loading import DTYPES
from oncurve.reward_models.examples import Example, PreferencePair

TOKENS = 16384
"""Tokens of one forward and backward pass, padding included."""

MAX_NORM = 1.0


class NoRewardModel(Component):
    """No reward model of the run's own (`kind = "none"`)."""

    head: ClassVar[None] = None


class RewardModelSettings(Component):
    """The fields of both kinds of reward model: the network, and how it is trained."""

    head: ClassVar[classifiers.HeadKind] = "outcome"
    """Which kind of classifier it is: a value per completion, or one per step."""

    examples: ClassVar[str] = "pairs"
    """The kind of its examples, in words."""

    path: str = ""
    """A directory in Hugging Face form, or a hub id: a reward model, or, to be trained, a causal language model, whose
    backbone gets a new head."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What it computes in: "float32", or "bfloat16", whose 8 bits hide small differences within a group."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; "auto": cuda where there is one."""

    max_length: int | None = Field(default=None, ge=1, le=10**7)
    """Longest input in tokens, prompt and completion together; none: the model's own limit."""

    learning_rate: float = Field(default=2e-5, ge=0)
    """Peak of the schedule, for AdamW."""

    schedule: Schedule = "constant"
    """The learning rate: "constant", or "linear" or "cosine" down to 0 at the last update."""

    epochs: int = Field(default=1, ge=1, le=10**4)
    """Passes over the examples."""

    batch_size: int = Field(default=32, ge=1, le=10**6)
    """Examples (pairs, or completions with labelled steps) of one update."""

    def load(self, new_head: bool = False, masters: bool = True) -> classifiers.Classifier:
        """Return the classifier: with `masters` in full precision, for `build`; otherwise in `dtype`, to score only.

        With `new_head` it may be a language model, which gets a new head. Raises ModelError.
        """
        return classifiers.load_classifier(
            self.path,
            self.head,
            dtype="float32" if masters else self.dtype,
            device=self.device,
            max_length=self.max_length,
            new_head=new_head,
        )

    def build(self, classifier: classifiers.Classifier, total_updates: int = 0) -> RewardLearner:
        """Return the learner of `classifier`, which computes in `dtype` from now on."""
        return RewardLearner(self, classifier, total_updates)


class OutcomeModel(RewardModelSettings):
    """One reward per completion (`kind = "outcome"`), learned from preference pairs."""

    center: float = Field(default=0.0, ge=0)
    """How strongly rewards are drawn towards 0, which pairs alone do not determine; 0: not at all."""


class ProcessModel(RewardModelSettings):
    """One reward per step (`kind = "process"`), learned from labelled steps."""

    head: ClassVar[classifiers.HeadKind] = "process"
    examples: ClassVar[str] = "completions with labelled steps"


REWARD_MODEL_KINDS: dict[str, type[Component]] = {
    "none": NoRewardModel,
    "outcome": OutcomeModel,
    "process": ProcessModel,
}


@dataclass(frozen=True)
class _Read:
    """An example as the classifier reads it: its texts, and for a process model the labels of their steps."""

    texts: tuple[classifiers.Encoded, ...]
    margin: float = 0.0
    labels: tuple[float, ...] = ()

    @property
    def longest(self) -> int:
        return max(len(text.ids) for text in self.texts)


class RewardLearner:
    """Trains a classifier. Two runs of the same updates on the same machine give the same bits."""

    def __init__(
        self, settings: RewardModelSettings, classifier: classifiers.Classifier, total_updates: int = 0
    ) -> None:
        """Take charge of `classifier`, in full precision as `RewardModelSettings.load` gives it.

        total_updates   of the whole training; the decaying schedules end there
        """
        self.settings, self.classifier = settings, classifier
        self.optimizer = MasterAdamW(classifier.module, DTYPES[settings.dtype], has_base=classifier.adapter is not None)
        self.pace = Pace(settings.learning_rate, settings.schedule, total_updates)

    @property
    def changes(self) -> int:
        """Return how often anything that `save` writes has begun to change, counted before the first tensor does."""
        return self.pace.attempts + self.optimizer.steps

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples that fit the classifier and have a label. Raises ModelError, DataError."""
        return [example for example in examples if self._read(example) is not None]

    def update(self, examples: Sequence[Example]) -> UpdateResult:
        """Return one AdamW step towards a batch of examples.

            outcome:  1/N Σ bradley_terry(r_chosen, r_rejected, margin)         N pairs
            process:  1/S Σ step_cross_entropy(verdict, label)                  S labelled steps

        The result does not depend on the pieces that a batch is computed in. Nothing changes where loss or gradient is
        not finite. Examples that do not fit are left out (`fitting`).
        """
        metrics = Metrics()
        self.optimizer.zero_grad()
        losses = self._measured(examples, metrics, backward=True)
        rate = self.pace.next()
        if not losses:
            return UpdateResult(metrics)
        loss = sum(losses)
        norm = self.optimizer.gradient_norm()
        if reason := self.optimizer.refusal(loss, norm):
            return UpdateResult(Metrics(), skipped=True, reason=f"reward model: {reason}")
        self.optimizer.step(rate, norm, MAX_NORM)
        return UpdateResult(metrics)

    @torch.no_grad()
    def measure(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return loss and accuracy on examples, without an update: `{"loss": ..., "accuracy": ...}`; empty where none
        fits.
        """
        metrics = Metrics()
        self._measured(examples, metrics, backward=False)
        return {name.removeprefix("reward_model/"): value for name, value in metrics.result().items()}

    def _measured(self, examples: Sequence[Example], metrics: Metrics, backward: bool) -> list[float]:
        """Return the losses of the pieces, whose sum is the batch's; their gradient is left in `.grad` with
        `backward`.
        """
        read = [found for found in map(self._read, examples) if found is not None]
        count = len(read) if self.classifier.head == "outcome" else sum(len(each.labels) for each in read)
        losses = []
        rows = len(read[0].texts) if read else 1
        for indices in classifiers.batches_by_length([each.longest for each in read], TOKENS // rows):
            with lookups_in_order(self.classifier.module):
                total, right = self._piece([read[index] for index in indices])
            if backward:
                (total / count).backward()  # type: ignore[no-untyped-call]
            losses.append(float(total.detach()) / count)
            metrics.add("reward_model/loss", float(total.detach()), count=float(len(right)))
            metrics.add("reward_model/accuracy", right)
        return losses

    def _piece(self, read: Sequence[_Read]) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of some examples `()`, and which pairs or steps are classified correctly
        `(n,)`.
        """
        scores = self.classifier.scores(
            [text for texts in zip(*(e.texts for e in read), strict=True) for text in texts]
        )
        if self.classifier.head == "outcome":
            chosen, rejected = scores.chunk(2)
            margins = torch.tensor([each.margin for each in read], device=scores.device)
            center = self.settings.center if isinstance(self.settings, OutcomeModel) else 0.0
            return bradley_terry(chosen, rejected, margins, center).sum(), (chosen > rejected).detach()
        labels = torch.tensor([label for each in read for label in each.labels], device=scores.device)
        losses = step_cross_entropy(scores, labels)
        return losses.sum(), ((scores > 0) == (labels >= 0.5)).detach()

    def _read(self, example: Example) -> _Read | None:
        """Return an example's texts; None where they are too long, or no step has a label."""
        is_pair = isinstance(example, PreferencePair)
        if is_pair != (self.classifier.head == "outcome"):
            wanted = "preference pairs" if self.classifier.head == "outcome" else "labelled steps"
            raise DataError(f"{self.classifier.name} learns from {wanted}, and got {type(example).__name__}")
        try:
            if isinstance(example, PreferencePair):
                texts = tuple(
                    self.classifier.encode(example.prompt, each) for each in (example.chosen, example.rejected)
                )
                return _Read(texts, example.margin)
            known = [(end, y) for end, y in zip(example.ends, example.labels, strict=True) if y is not None]
            text = self.classifier.encode(example.prompt, example.completion, [end for end, _ in known])
            return _Read((text,), labels=tuple(label for _, label in known)) if known else None
        except classifiers.OverlongError:
            return None

    def save(self, folder: Path) -> dict[str, Any]:
        """Write masters and moments to `reward_model.safetensors` in `folder`; the record for `load`."""
        return self.optimizer.save(folder, "reward_model") | {"attempts": self.pace.attempts}

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError for another model's."""
        self.optimizer.load(folder, "reward_model", meta)
        self.pace.attempts = int(meta["attempts"])

    def export(self, path: Path) -> None:
        """Write the classifier in Hugging Face form, from its full-precision masters."""
        classifiers.save_classifier(self.classifier, path, self.optimizer.masters)
