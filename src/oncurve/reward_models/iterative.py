"""The outer loop of Algorithm 1 (DeepSeekMath, arXiv:2402.03300): a new reference, and a reward model that is updated.

2      for iteration = 1, ..., I do
3          π_ref ← π_θ                                           `before_step`, at an iteration's first step
4-11       for step = 1, ..., M do ...                           `Trainer.step`
12         update r_φ through continuous training with replay    `after_step`, at an iteration's last step
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from oncurve import durable
from oncurve.base.errors import CheckpointError
from oncurve.components import Component
from oncurve.metrics import Metrics
from oncurve.randomness import permutation
from oncurve.reward_models.examples import Example, example_from_json, example_to_json
from oncurve.reward_models.labelling import Labeller
from oncurve.reward_models.learner import RewardLearner
from oncurve.reward_models.training import fit
from oncurve.trainer import ReferenceSchedule, StepResult, TrainerState
from oncurve.types import Group

FILE = "replay.jsonl"


class Replay:
    """Examples by iteration, for training and held out; iteration 0 is what the reward model had learned from before.

    In a run directory (`folder`) they are a log, `replay.jsonl`, whose length is part of a checkpoint. Without one they
    are kept in memory alone.
    """

    def __init__(self, history: Sequence[Example] = ()) -> None:
        self.folder: Path | None = None
        self._history = list(history)
        self._kept: list[tuple[int, bool, Example]] = []
        self._log: durable.AppendLog | None = None
        self._closed = False

    def open(self, offset: int = 0, digest: str | None = None) -> None:
        """Begin a log, or continue the one there after its first `offset` bytes.

        Raises CheckpointError: the log is shorter, or the sha256 of these bytes is not `digest`.
        """
        if self.folder is None:
            return
        path = self.folder / FILE
        self._log = durable.AppendLog(path, offset=offset)
        if digest is not None and self.digest() != digest:
            raise CheckpointError(f"{path} has been changed since the checkpoint: its sha256 does not fit")
        self._kept = [
            (int(record["iteration"]), bool(record["held_out"]), example_from_json(record))
            for record in durable.read_log(path)
        ]

    def add(self, iteration: int, examples: Sequence[Example], held_out: bool) -> None:
        """Keep examples of an iteration, from 1."""
        if self._log is None and not self._closed:
            self.open()
        for example in examples:
            self._kept.append((iteration, held_out, example))
            if self._log is not None:
                self._log.append({"iteration": iteration, "held_out": held_out, **example_to_json(example)})

    def of(self, iteration: int, held_out: bool = False) -> list[Example]:
        """Return the examples of one iteration."""
        return [example for number, held, example in self._kept if number == iteration and held == held_out]

    def earlier(self, iteration: int) -> list[Example]:
        """Return all examples to train on from before an iteration."""
        return self._history + [example for number, held, example in self._kept if number < iteration and not held]

    def replayed(self, iteration: int, share: float, seed: int) -> list[Example]:
        """Return `share` of all earlier examples, rounded, drawn without repetition: a function of (seed,
        iteration).
        """
        earlier = self.earlier(iteration)
        count = round(share * len(earlier))
        return [earlier[index] for index in sorted(permutation(seed, iteration, len(earlier))[:count].tolist())]

    def digest(self) -> str:
        """Return the sha256 of the log so far, by which a resume sees that it has been changed; "" without a log."""
        if self._log is None:
            return ""
        self._log.sync()
        return durable.sha256(self._log.path)

    def stored_bytes(self) -> int:
        """Return the length of the log, on the disk when this returns; 0 without one."""
        if self._log is None:
            return 0
        self._log.sync()
        return self._log.offset

    def close(self) -> None:
        """Close the log; what is added later is kept in memory alone."""
        self._closed = True
        if self._log is not None:
            self._log.close()
            self._log = None


class IterativeSettings(Component):
    """Iterative GRPO: at intervals a new reference, and a reward model trained on the scores of `eval.verifier`."""

    steps: int = Field(default=0, ge=0, le=10**9)
    """Steps of an iteration; 0: no iterations."""

    replay: float = Field(default=0.1, ge=0, le=1)
    """Share of all earlier examples that an iteration trains on again."""

    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of an iteration's prompts whose samples are not trained on but measure the reward model."""

    continuations: int = Field(default=0, ge=0, le=10**5)
    """For a process model with a verifier of answers only: continuations from each step's end; the share of right ones
    is the step's label. 0: the verifier scores steps."""

    history: str | None = None
    """A file of the examples that the reward model was trained on before, as `oncurve reward-model train` takes it."""


@dataclass
class Iterations:
    """An `OuterLoop` that ends every iteration with the reward model's continued training.

    The reference moves with `reference`, whose `every` is the iteration's steps. The verifier's labels of each step's
    groups go into `replay`; the reward model is trained on this iteration's examples and on a share of all earlier
    ones, and scores with its new weights from the next step on. `save` writes all of it.
    """

    settings: IterativeSettings
    reference: ReferenceSchedule
    learner: RewardLearner
    label: Labeller
    replay: Replay
    seed: int = 0

    def before_step(self, state: TrainerState) -> None:
        """Line 3: π_ref ← π_θ, at the first step of every iteration but the first, whose reference is the policy."""
        self.reference.before_step(state)

    def after_step(self, result: StepResult) -> StepResult:
        """Keep the verifier's labels of the step's samples; line 12 at the last step of an iteration."""
        result = self.reference.after_step(result)
        number = 1 + (result.step - 1) // self.settings.steps
        for held_out in (False, True):
            groups = [group for group in result.groups if self._is_held_out(group) == held_out]
            self.replay.add(number, self.learner.fitting(self.label(groups)), held_out)
        result.metrics["progress/iteration"] = float(number)
        if result.step % self.settings.steps == 0:
            result.metrics.update(self._train_on(number))
        return result

    def _train_on(self, number: int) -> dict[str, float]:
        """Return the reward model's continued training at the end of an iteration; its metrics."""
        started = time.perf_counter()
        new, held_out = self.replay.of(number), self.replay.of(number, held_out=True)
        replayed = self.replay.replayed(number, self.settings.replay, self.seed)
        before = self.learner.measure(held_out)
        metrics = fit(self.learner, new + replayed, self.seed + number) if new else Metrics()
        after = self.learner.measure(held_out)
        found = {
            "reward_model/new_examples": float(len(new)),
            "reward_model/replayed_examples": float(len(replayed) if new else 0),
            "reward_model/history_examples": float(len(self.replay.earlier(number))),
            "reward_model/updates": 0.0,
            "time/reward_model": time.perf_counter() - started,
            **metrics.result(),
            **{f"reward_model/heldout_{name}": value for name, value in after.items()},
        }
        return found | ({"reward_model/heldout_accuracy_before": before["accuracy"]} if before else {})

    def _is_held_out(self, group: Group) -> bool:
        """Return whether a prompt's samples only measure the reward model: a function of the prompt, the same in every
        run.
        """
        digest = hashlib.blake2b(str(group.prompt.id).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.settings.held_out * 2**64

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the reward model with its optimizer; the record also has the replay buffer's length."""
        return {
            "reward_model": self.learner.save(folder),
            "replay_bytes": self.replay.stored_bytes(),
            "replay_sha256": self.replay.digest(),
            "reference": self.reference.save(folder),
        }

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError: the checkpoint has no reward model."""
        if "reward_model" not in meta:
            raise CheckpointError("the checkpoint has no reward model, and this run's [iterative] needs one")
        self.learner.load(folder, meta["reward_model"])
        self.replay.open(int(meta["replay_bytes"]), meta["replay_sha256"])
        self.reference.load(folder, meta["reference"])
