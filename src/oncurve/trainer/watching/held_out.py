"""Evaluation during training: when it is due, which checkpoint is the best by it, and when it ends a run early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from oncurve.trainer.state import TrainerState


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
