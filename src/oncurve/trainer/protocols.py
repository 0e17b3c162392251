"""The interfaces of the parts that the loop is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from oncurve.data import Counts
from oncurve.trainer.state import StepResult, TrainerState
from oncurve.types import AdvantagesAndReturns, Prompt, TrainBatch


class Advantage(Protocol):
    """Turns a batch's rewards into one advantage per token."""

    @property
    def min_valid_completions(self) -> int:
        """The fewest valid completions a group needs."""
        ...

    def __call__(self, batch: TrainBatch) -> Tensor | AdvantagesAndReturns:
        """Return advantages `(B, T)`, with returns where a critic learns from them."""
        ...


class PromptSource(Protocol):
    """Prompts in an order that is a function of the cursor, and of the counts in a curriculum."""

    def take(self, cursor: int, count: int, counts: Counts | None = None) -> tuple[list[Prompt], int]:
        """Return `count` prompts from `cursor` on, and the cursor after them; with a curriculum by the `counts`."""
        ...

    def epoch(self, cursor: int) -> float:
        """Return how many times the data has been gone through at `cursor`."""
        ...


class OuterLoop(Protocol):
    """The outer loop of Algorithm 1, around lines 4 to 11.

    A step that was abandoned or killed is repeated, perhaps in another process: `before_step` twice equals once.
    """

    def before_step(self, state: TrainerState) -> None:
        """Called before a step, after `state.step` steps: lines 2 and 3, such as π_ref ← π_θ."""

    def after_step(self, result: StepResult) -> StepResult:
        """Called after a step, before it is evaluated and recorded: line 12. May add metrics to the result."""
        ...

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write what must survive into files of the checkpoint in `folder`; returns a JSON-able record for `load`."""
        ...

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote."""
