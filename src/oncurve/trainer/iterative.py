"""The outer loop of Algorithm 1 (DeepSeekMath, arXiv:2402.03300): a new reference, and a reward model that keeps up.

2      for iteration = 1, ..., I do
3          π_ref <- π_θ                                          `begin`, before an iteration's first step
4-11       for step = 1, ..., M do ...                           `Trainer.step`
12         update r_φ through continuous training with replay    `end`, after an iteration's last step
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field
from torch import Tensor

from oncurve.errors import CheckpointError
from oncurve.learner.reward_model import RewardLearner
from oncurve.metrics import Metrics
from oncurve.spec import Component
from oncurve.trainer.labelling import Labeller
from oncurve.trainer.outer import ReferenceSchedule
from oncurve.trainer.replay import Replay
from oncurve.trainer.reward_training import fit
from oncurve.trainer.state import TrainerState
from oncurve.types import Group

if TYPE_CHECKING:
    from oncurve.trainer.trainer import StepResult

__all__ = ["Iterations", "IterativeSettings"]


class IterativeSettings(Component):
    """Iterative GRPO: every so many steps a new reference, and a reward model trained on what `eval.judge` says.

    steps      steps of an iteration; 0: no iterations
    replay     share of all earlier examples that an iteration trains on again
    held_out   share of an iteration's prompts whose samples are not trained on but tell how good the reward model is
    roll_outs  for a process model whose judge looks at answers only: completions from each step's end, whose share of
               right ones is the step's label; 0: the judge judges steps
    history    a file of what the reward model had learned from before, as `oncurve reward-model train` takes it
    """

    steps: int = Field(default=0, ge=0, le=10**9)
    replay: float = Field(default=0.1, ge=0, le=1)
    held_out: float = Field(default=0.1, ge=0, lt=1)
    roll_outs: int = Field(default=0, ge=0, le=10**5)
    history: str | None = None


class Iterations:
    """An `Outer` that ends every iteration with the reward model's continued training.

    The reference moves with `reference`, whose `every` is the iteration's steps. What the judge says of each step's
    groups goes into `replay`; the reward model is trained on this iteration's examples and on a share of all earlier
    ones, and judges with what it has learned from the next step on. All of it is in `state`.
    """

    def __init__(
        self,
        settings: IterativeSettings,
        reference: ReferenceSchedule,
        learner: RewardLearner,
        label: Labeller,
        replay: Replay,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.reference = reference
        self.learner = learner
        self.replay = replay
        self._label = label
        self._seed = seed

    def begin(self, state: TrainerState) -> None:
        """Line 3: π_ref ← π_θ, at the first step of every iteration but the first, whose reference is the policy."""
        self.reference.begin(state)

    def end(self, result: StepResult) -> StepResult:
        """Keep what the judge says of the step's samples; line 12 at the last step of an iteration."""
        result = self.reference.end(result)
        number = 1 + (result.step - 1) // self.settings.steps
        for held_out in (False, True):
            groups = [group for group in result.groups if self._is_held_out(group) == held_out]
            self.replay.add(number, self.learner.fitting(self._label(groups)), held_out)
        result.metrics["iteration"] = float(number)
        if result.step % self.settings.steps == 0:
            result.metrics.update(self._train_on(number))
        return result

    def _train_on(self, number: int) -> dict[str, float]:
        """The reward model's continued training at the end of an iteration; its metrics."""
        started = time.perf_counter()
        new, held_out = self.replay.of(number), self.replay.of(number, held_out=True)
        earlier = self.replay.earlier(number)
        replayed = self.replay.replayed(number, self.settings.replay, self._seed)
        before = self.learner.measure(held_out)
        metrics = fit(self.learner, new + replayed, self._seed + number) if new else Metrics()
        after = self.learner.measure(held_out)
        found = {
            "reward_model_new": float(len(new)),
            "reward_model_replayed": float(len(replayed) if new else 0),
            "reward_model_history": float(len(earlier)),
            "reward_model_updates": 0.0,
            "seconds_reward_model": time.perf_counter() - started,
            **metrics.result(),
            **{f"reward_model_heldout_{name}": value for name, value in after.items()},
        }
        return found | ({"reward_model_before": before["accuracy"]} if before else {})

    def _is_held_out(self, group: Group) -> bool:
        """Whether a prompt's samples only judge the reward model: a function of the prompt, the same in every run."""
        digest = hashlib.blake2b(str(group.prompt.id).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.settings.held_out * 2**64

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The reward model with its optimizer, the length of the replay buffer, the reference's last move."""
        tensors, meta = self.learner.state()
        return tensors, {
            "reward_model": meta,
            "replay_bytes": self.replay.stored_bytes(),
            "replay_sha256": self.replay.digest(),
            "reference": self.reference.state()[1],
        }

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`, bit for bit. Raises CheckpointError: the checkpoint has no reward model."""
        if "reward_model" not in meta:
            raise CheckpointError("the checkpoint has no reward model, and this run's [iterative] asks for one")
        self.learner.load_state(tensors, meta["reward_model"])
        self.replay.open(int(meta["replay_bytes"]), meta["replay_sha256"])
        self.reference.load_state({}, meta["reference"])
