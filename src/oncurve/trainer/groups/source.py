"""The source of a step's groups: prompts, completions and rewards, collected when the step begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oncurve.metrics import Metrics
from oncurve.models import Weights
from oncurve.trainer.groups.collecting import Collecting, Drawing
from oncurve.trainer.state import Collected, TrainerState
from oncurve.types import Group


@dataclass
class Groups(Drawing):
    """The source of each step's groups, sampled and scored when the step begins, by the weights as they are.

    A context manager around the steps of a run. Subclasses collect earlier, or elsewhere.

    unfinished   the groups that were sampled for a step that failed
    """

    unfinished: Sequence[Group] = field(default=(), init=False)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *error: object) -> None:
        self.rest()

    @property
    def exact(self) -> bool:
        """The engine's statement: recorded log-probs are those of the weights that sampled, up to rounding."""
        return self.engine.exact

    def follow(self, weights: Weights, step: int) -> None:
        """Sample from `weights`, the policy's after `step` steps."""
        self.engine.follow(weights)

    def next(self, state: TrainerState, metrics: Metrics) -> Collected:
        """Return the groups of the step after `state`, with their rewards.

        Raises TrainingError: there is no group to train on.
        """
        collecting = self.collecting()
        self.unfinished = collecting.sampled
        return collecting.collect(state, metrics)

    def collecting(self) -> Collecting:
        """Return what collects the groups of one step."""
        return Collecting(**{each.name: getattr(self, each.name) for each in fields(Drawing)})

    def epoch(self, cursor: int) -> float:
        """Return how many times the data has been gone through at `cursor`."""
        return self.source.epoch(cursor)

    def worked(self, since: float = 0.0) -> float | None:
        """Return the seconds for which other processes have sampled, the mean over them, less `since`; None: none."""
        seconds = self.engine.worked()
        return None if seconds is None else seconds - since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the collection: inside, engine and rewards may be used for something else, such as an evaluation."""
        yield

    def rest(self) -> None:
        """Give up what is being collected: no step follows for now."""

    def close(self) -> None:
        """Release what is held. Twice is allowed."""

    def save(self, folder: Path, step: int) -> Mapping[str, Any]:
        """Return the record for a checkpoint in `folder`: what the steps after `step` need next to the weights."""
        return {}

    def load(self, folder: Path, record: Mapping[str, Any], weights: Weights) -> None:
        """Restore what `save` wrote; `weights` are the policy's."""
