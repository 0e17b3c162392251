"""The learner of a reward model: a classifier, its optimizer, and the two kinds of examples that it learns from.

outcome   preference pairs: the chosen completion's reward is to be above the rejected one's
process   labelled steps: at the end of each step, how likely it is right

Its weights are the very ones that a reward of kind "model" or "process_model" judges with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from oncurve.errors import DataError
from oncurve.learner.optim import MasterAdamW, Schedule, scheduled_rate
from oncurve.learner.protocol import UpdateResult
from oncurve.losses import bradley_terry, step_cross_entropy
from oncurve.metrics import Metrics
from oncurve.models import save
from oncurve.models.classifier import Classifier, Encoded, HeadKind, OverlongError, batches_by_length
from oncurve.models.judges import load_classifier
from oncurve.models.precision import DTYPES
from oncurve.spec import Component
from oncurve.types import LabelledSteps, PreferencePair

__all__ = [
    "REWARD_MODEL_KINDS",
    "Example",
    "NoRewardModel",
    "OutcomeModel",
    "ProcessModel",
    "RewardLearner",
    "RewardModelSettings",
]

Example = PreferencePair | LabelledSteps
TOKENS = 16384
"""Of one forward and backward pass, padding included."""

MAX_NORM = 1.0


class NoRewardModel(Component):
    """No reward model of the run's own (`kind = "none"`)."""


class RewardModelSettings(Component):
    """What both kinds have: the network, and how it is trained.

    path            a directory in Hugging Face form, or a hub id: a reward model, or, to be trained, a causal language
                    model, whose backbone gets a new head
    dtype           what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device          "auto": cuda where there is one
    max_length      longest text it reads, in tokens, prompt and completion together; none: what it was made for
    learning_rate   peak of the schedule, of AdamW
    schedule        "constant", or "linear" or "cosine" down to 0 at the last update
    epochs          times over the examples
    batch_size      examples of an update
    """

    path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_length: int | None = Field(default=None, ge=1, le=10**7)
    learning_rate: float = Field(default=2e-5, ge=0)
    schedule: Schedule = "constant"
    epochs: int = Field(default=1, ge=1, le=10**4)
    batch_size: int = Field(default=32, ge=1, le=10**6)

    @property
    def head(self) -> HeadKind:
        """Which kind of classifier it is."""
        return "process" if isinstance(self, ProcessModel) else "outcome"

    def load(self, new_head: bool = False, masters: bool = True) -> Classifier:
        """The classifier: with `masters` in full precision, for `build`, else in `dtype`, to judge.

        With `new_head` it may be one that is yet to become a reward model. Raises ModelError.
        """
        return load_classifier(
            self.path,
            self.head,
            dtype="float32" if masters else self.dtype,
            device=self.device,
            max_length=self.max_length,
            new_head=new_head,
        )

    def build(self, classifier: Classifier, total_updates: int = 0) -> RewardLearner:
        """The learner of `classifier`, which computes in `dtype` from now on."""
        return RewardLearner(self, classifier, total_updates)


class OutcomeModel(RewardModelSettings):
    """A reward a completion (`kind = "outcome"`), learned from preference pairs.

    path            a directory in Hugging Face form, or a hub id: a reward model, or, to be trained, a causal language
                    model, whose backbone gets a new head
    dtype           what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device          "auto": cuda where there is one
    max_length      longest text it reads, in tokens, prompt and completion together; none: what it was made for
    learning_rate   peak of the schedule, of AdamW
    schedule        "constant", or "linear" or "cosine" down to 0 at the last update
    epochs          times over the examples
    batch_size      pairs of an update
    center          how much rewards are drawn towards 0, of which the pairs say nothing; 0: not at all
    """

    center: float = Field(default=0.0, ge=0)


class ProcessModel(RewardModelSettings):
    """A reward a step (`kind = "process"`), learned from labelled steps.

    path            a directory in Hugging Face form, or a hub id: a reward model, or, to be trained, a causal language
                    model, whose backbone gets a new head
    dtype           what it computes in: "float32", or "bfloat16", whose 8 bits blur what is between siblings
    device          "auto": cuda where there is one
    max_length      longest text it reads, in tokens, prompt and completion together; none: what it was made for
    learning_rate   peak of the schedule, of AdamW
    schedule        "constant", or "linear" or "cosine" down to 0 at the last update
    epochs          times over the examples
    batch_size      completions of an update
    """


REWARD_MODEL_KINDS: dict[str, type[Component]] = {
    "none": NoRewardModel,
    "outcome": OutcomeModel,
    "process": ProcessModel,
}


@dataclass(frozen=True)
class _Read:
    """An example as the classifier reads it: its texts, and for a process model the labels of their steps."""

    texts: tuple[Encoded, ...]
    margin: float = 0.0
    labels: tuple[float, ...] = ()

    @property
    def longest(self) -> int:
        return max(len(text.ids) for text in self.texts)


class RewardLearner:
    """Trains a classifier. Two runs of the same updates on the same machine give the same bits."""

    def __init__(self, settings: RewardModelSettings, classifier: Classifier, total_updates: int = 0) -> None:
        """Take charge of `classifier`, in full precision as `RewardModelSettings.load` gives it.

        total_updates   of all that is to come; the decaying schedules end there
        """
        self.settings = settings
        self.classifier = classifier
        self.optimizer = MasterAdamW(classifier.module, DTYPES[settings.dtype])
        self.total_updates = total_updates
        self._attempts = 0

    @property
    def center(self) -> float:
        """How much rewards are drawn towards 0."""
        return self.settings.center if isinstance(self.settings, OutcomeModel) else 0.0

    @property
    def changes(self) -> int:
        """How often anything of `state()` has begun to change, counted before the first tensor does."""
        return self._attempts + self.optimizer.steps

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """The examples that the classifier can read and that teach it something. Raises ModelError, DataError."""
        return [example for example in examples if self._read(example) is not None]

    def update(self, examples: Sequence[Example]) -> UpdateResult:
        """One AdamW step towards a batch of examples.

            outcome:  1/N Σ bradley_terry(r_chosen, r_rejected, margin)         N pairs
            process:  1/S Σ step_cross_entropy(verdict, label)                  S labelled steps

        It does not depend on the pieces that a batch is computed in. Nothing changes where loss or gradient is not
        finite. Examples that do not fit are passed over (see `fitting`); where none does, nothing is done.
        """
        rate = scheduled_rate(
            self.settings.learning_rate, self._attempts, self.total_updates, 0, self.settings.schedule
        )
        metrics = Metrics()
        self.optimizer.zero_grad()
        losses = self._measured(examples, metrics, backward=True)
        self._attempts += 1
        if not losses:
            return UpdateResult(metrics)
        loss = sum(losses)
        norm = self.optimizer.gradient_norm()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad()
            reason = f"reward model: loss {loss:.4g}, gradient norm {norm:.4g}"
            return UpdateResult(Metrics(), skipped=True, reason=reason)
        self.optimizer.step(rate, norm, MAX_NORM)
        return UpdateResult(metrics)

    @torch.no_grad()
    def measure(self, examples: Sequence[Example]) -> dict[str, float]:
        """Loss and accuracy on examples, nothing learned: `{"loss": ..., "accuracy": ...}`; empty where none fits."""
        metrics = Metrics()
        self._measured(examples, metrics, backward=False)
        return {name.removeprefix("reward_model_"): value for name, value in metrics.result().items()}

    def _measured(self, examples: Sequence[Example], metrics: Metrics, backward: bool) -> list[float]:
        """The losses of the pieces, whose sum is the batch's; their gradient is left in `.grad` with `backward`."""
        read = [found for found in map(self._read, examples) if found is not None]
        count = len(read) if self.classifier.head == "outcome" else sum(len(each.labels) for each in read)
        losses = []
        rows = len(read[0].texts) if read else 1
        for indices in batches_by_length([each.longest for each in read], TOKENS // rows):
            total, right = self._piece([read[index] for index in indices])
            if backward:
                (total / count).backward()  # type: ignore[no-untyped-call]
            losses.append(float(total.detach()) / count)
            metrics.add("reward_model_loss", float(total.detach()), count=float(len(right)))
            metrics.add("reward_model_accuracy", right)
        return losses

    def _piece(self, read: Sequence[_Read]) -> tuple[Tensor, Tensor]:
        """The sum of the losses of some examples `()`, and which pairs or steps are judged rightly `(n,)`."""
        verdicts = self.classifier.verdicts(
            [text for texts in zip(*(e.texts for e in read), strict=True) for text in texts]
        )
        if self.classifier.head == "outcome":
            chosen, rejected = verdicts.chunk(2)
            margins = torch.tensor([each.margin for each in read], device=verdicts.device)
            losses = bradley_terry(chosen, rejected, margins, self.center)
            return losses.sum(), (chosen > rejected).detach()
        labels = torch.tensor([label for each in read for label in each.labels], device=verdicts.device)
        losses = step_cross_entropy(verdicts, labels)
        return losses.sum(), ((verdicts > 0) == (labels >= 0.5)).detach()

    def _read(self, example: Example) -> _Read | None:
        """An example's texts; None where they are too long, or no step has a label."""
        is_pair = isinstance(example, PreferencePair)
        if is_pair != (self.classifier.head == "outcome"):
            wanted = "preference pairs" if self.classifier.head == "outcome" else "labelled steps"
            raise DataError(f"{self.classifier.name} learns from {wanted}, and was given {type(example).__name__}")
        try:
            if isinstance(example, PreferencePair):
                texts = tuple(
                    self.classifier.encode(example.prompt, each) for each in (example.chosen, example.rejected)
                )
                return _Read(texts, example.margin)
            known = [(end, y) for end, y in zip(example.ends, example.labels, strict=True) if y is not None]
            text = self.classifier.encode(example.prompt, example.completion, [end for end, _ in known])
            return _Read((text,), labels=tuple(label for _, label in known)) if known else None
        except OverlongError:
            return None

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Masters and moments by name, and the counts. Tensors are views: write them before the next update."""
        return self.optimizer.state(), {"steps": self.optimizer.steps, "attempts": self._attempts}

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`, bit for bit. Raises CheckpointError for another model's."""
        self.optimizer.load_state(tensors, int(meta["steps"]))
        self._attempts = int(meta["attempts"])

    def save(self, path: Path) -> None:
        """The classifier in Hugging Face form, from its full-precision masters."""
        save(self.classifier.module, self.classifier.tokenizer, path, self.optimizer.masters)
