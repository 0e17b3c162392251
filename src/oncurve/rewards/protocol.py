"""The interface of rewards to the loops that use them: training, evaluation, labelling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Protocol

from oncurve.base.closing import Closing
from oncurve.types import Group


class Scoring(Closing):
    """The scores of one call of the engine, which may be begun while other groups are still being sampled.

    rewarded             there is a reward at all; without one every score is 0
    metrics              numbers that the rewards logged, once finished
    overlapped_seconds   time that workers spent on rewards before `finish`, once finished
    """

    rewarded: bool = True
    metrics: Mapping[str, float] = MappingProxyType({})
    overlapped_seconds: float = 0.0

    def submit(self, index: int, group: Group) -> None:
        """Take group number `index`, which has ended."""

    @abstractmethod
    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return all groups, each completion with its score."""

    def close(self) -> None:
        """Nothing is held."""


class DeferredScoring(Scoring):
    """A scoring that does nothing while groups are being sampled: `finish` is `score`."""

    def __init__(self, score: Callable[[Sequence[Group]], list[Group]]) -> None:
        self._score = score

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with their scores."""
        return self._score(groups)


class Scorer(Protocol):
    """Fills in the scores of groups."""

    def begin(self, step: int = 0) -> AbstractContextManager[Scoring]:
        """Return the scoring of one call of the engine. `step` is for rewards that depend on how far the run is."""
        ...

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups, each completion with its score."""
        ...
