"""The interface of rewards to the loops that use them: training, evaluation, labelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from oncurve.types import Group


class Scoring(Protocol):
    """The scores of one call of the engine, which may be begun while other groups are still being sampled."""

    @property
    def rewarded(self) -> bool:
        """Return whether there is a reward at all; without one every score is 0."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Numbers that the rewards logged, once finished."""
        ...

    @property
    def overlapped_seconds(self) -> float:
        """Time that workers spent on rewards before `finish`, once finished."""
        ...

    def submit(self, index: int, group: Group) -> None:
        """Group number `index` has ended."""
        ...

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return all groups, each completion with its score."""
        ...


class Scorer(Protocol):
    """Fills in the scores of groups."""

    def begin(self, step: int = 0) -> AbstractContextManager[Scoring]:
        """Return the scoring of one call of the engine. `step` is for rewards that depend on how far the run is."""
        ...

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups, each completion with its score."""
        ...
