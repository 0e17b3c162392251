"""What the loop needs of the parts it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from oncurve.trainer.state import TrainerState
from oncurve.types import Graded, Group, Prompt, TrainBatch

if TYPE_CHECKING:
    from oncurve.trainer.trainer import StepResult

__all__ = ["Advantage", "Outer", "Scorer", "Scoring", "Stream"]


class Advantage(Protocol):
    """Turns a batch's rewards into one advantage per token."""

    @property
    def least_valid(self) -> int:
        """The fewest valid completions a group needs."""
        ...

    def __call__(self, batch: TrainBatch) -> Tensor | Graded:
        """Advantages `(B, T)`, with returns where a critic learns from them."""
        ...


class Scoring(Protocol):
    """The scores of one step's groups, which may be begun while other groups are still being written."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Numbers that the rewards logged of themselves, once finished."""
        ...

    @property
    def overlapped_seconds(self) -> float:
        """Time that workers spent on rewards before `finish`, once finished."""
        ...

    def submit(self, index: int, group: Group) -> None:
        """Group number `index` has ended."""
        ...

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """All groups, each completion with its score."""
        ...


class Scorer(Protocol):
    """Fills in the scores of groups."""

    def begin(self, step: int = 0) -> AbstractContextManager[Scoring]:
        """The scoring of one step. `step` is for rewards that ask how far the run is."""
        ...


class Stream(Protocol):
    """Prompts in an order that is a function of the cursor."""

    def take(self, cursor: int, count: int) -> tuple[list[Prompt], int]:
        """`count` prompts from `cursor` on, and the cursor after them."""
        ...

    def epoch(self, cursor: int) -> float:
        """How many times the data has been gone through at `cursor`."""
        ...


class Outer(Protocol):
    """What happens between steps: the outer loop of Algorithm 1, around lines 4 to 11.

    A step that was abandoned or killed is begun again, perhaps in another process: `begin` twice is `begin` once.
    """

    def begin(self, state: TrainerState) -> None:
        """Before a step, `state.step` of them being done: lines 2 and 3, such as π_ref ← π_θ."""
        ...

    def end(self, result: StepResult) -> StepResult:
        """After a step, before it is judged and recorded: line 12. What is returned may have more metrics."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a JSON-able record: what must survive. Nothing is written where both are empty."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `state`; both are empty where the checkpoint has nothing."""
        ...
