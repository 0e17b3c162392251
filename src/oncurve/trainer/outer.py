"""What happens between steps: a reference that follows the policy by a schedule, or stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from oncurve.learner import Learner
from oncurve.trainer.state import TrainerState

if TYPE_CHECKING:
    from oncurve.trainer.trainer import StepResult

__all__ = ["ReferenceSchedule"]


@dataclass
class ReferenceSchedule:
    """An `Outer` that moves the reference by `mixup` towards the policy every so many steps; `every` 0: never.

    `moved_for` is the step (from 1) before which it moved last, 0 if never: a step that is begun again does not move it
    again. Example: with `every` 10 it moves before steps 11, 21, 31 …
    """

    every: int
    mixup: float
    learner: Learner
    moved_for: int = 0

    def begin(self, state: TrainerState) -> None:
        """Move the reference where a step is due to begin with that, and has not moved it yet."""
        step = state.step + 1
        if self.every and state.step and state.step % self.every == 0 and self.moved_for != step:
            before = self.learner.reference_version
            self.learner.move_reference(self.mixup)
            if self.learner.reference_version != before:  # there is a reference
                self.moved_for = step

    def end(self, result: StepResult) -> StepResult:
        """The result, with `reference_moved` where the step began with a move."""
        if result.step == self.moved_for:
            result.metrics["reference_moved"] = 1.0
        return result

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Outer.state`: the record of the last move, if there was one."""
        return {}, {"moved_for": self.moved_for} if self.moved_for else {}

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """See `Outer.load_state`."""
        self.moved_for = int(meta.get("moved_for", 0))
