"""What the loop needs of the parts it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from oncurve.types import Graded, Group, Prompt, TrainBatch

__all__ = ["Advantage", "Scorer", "Scoring", "Stream"]


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
