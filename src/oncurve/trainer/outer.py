"""Between steps: a reference that follows the policy by a schedule, and evaluations on held-out prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from oncurve.learner import Learner, ReferenceSettings
from oncurve.trainer.state import StepResult, TrainerState


class OuterLoop(Protocol):
    """The outer loop of Algorithm 1, around lines 4 to 11.

    A step that was abandoned or killed is repeated, perhaps in another process: `before_step` twice equals once.
    """

    def before_step(self, state: TrainerState) -> None:
        """Called before a step, after `state.step` steps: lines 2 and 3, such as π_ref ← π_θ."""

    def after_step(self, result: StepResult) -> StepResult:
        """Called after a step, before it is evaluated and recorded: line 12. May add metrics to the result."""

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write what must survive into files of the checkpoint in `folder`; returns a JSON-able record for `load`."""

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote."""


@dataclass
class ReferenceSchedule:
    """An `OuterLoop` that moves the reference towards the policy, as the settings say.

    `moved_for` is the step (from 1) before which it moved last, 0 if never: repeating that step does not move it again.
    Example: with `every` 10 it moves before steps 11, 21, 31 …
    """

    settings: ReferenceSettings
    learner: Learner
    moved_for: int = 0

    def before_step(self, state: TrainerState) -> None:
        """Move the reference if a move is due before this step and has not been made yet."""
        step, every = state.step + 1, self.settings.every
        if every and state.step and state.step % every == 0 and self.moved_for != step:
            before = self.learner.changes
            self.learner.move_reference(self.settings.mixup_alpha)
            if self.learner.changes != before:  # there is a reference
                self.moved_for = step

    def after_step(self, result: StepResult) -> StepResult:
        """Return the result, with `reference/moved` where the reference moved before the step."""
        if result.step == self.moved_for:
            result.metrics["reference/moved"] = 1.0
        return result

    def save(self, folder: Path) -> dict[str, Any]:
        """Return the record of the last move, if there was one; no file."""
        return {"moved_for": self.moved_for} if self.moved_for else {}

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote."""
        self.moved_for = int(meta.get("moved_for", 0))


@dataclass(frozen=True)
class HeldOut:
    """The schedule of evaluations on held-out prompts, and what follows from them.

    every      steps between evaluations, and one after the last step; 0: none
    at_start   one before step 1, too
    metric     of these evaluations the one that says which checkpoint is the best; more is better; None: none
    patience   evaluations in a row without a better one that end the run; 0: none do
    """

    every: int = 0
    at_start: bool = False
    metric: str | None = None
    patience: int = 0

    def due(self, step: int, steps: int) -> bool:
        """Return whether the policy is evaluated after `step` of `steps`."""
        return self.every > 0 and (step % self.every == 0 or step == steps)

    def after(self, state: TrainerState, found: Mapping[str, float]) -> TrainerState:
        """Return the state after an evaluation: of equal values the first stays the best; a missing value is no better
        one.

        The value before step 1 is the first to beat. There is no checkpoint of it: the model that the run began with
        has it, and `best_step` is 0 until a step is better.
        """
        if self.metric is None:
            return state
        value = found.get(self.metric)
        if value is not None and (state.best is None or value > state.best):
            return replace(state, best=value, best_step=state.step, since_best=0)
        return replace(state, since_best=state.since_best + 1) if state.step else state

    def ends(self, state: TrainerState) -> bool:
        """Return whether the run is at its end early."""
        return 0 < self.patience <= state.since_best
