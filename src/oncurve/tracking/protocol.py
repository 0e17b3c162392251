"""The interface of a tracker, and what it is told of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from oncurve.tracking.settings import TrackingSettings


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker describes it.

    id        16 hexadecimal digits, the same after every resume
    name      shown to readers; other runs may have the same
    config    the resolved configuration, as nested tables
    folder    the run directory
    step      the last step whose points, if a tracker has them, are those of the run. Later ones are of a process that
              was killed, or of a call that failed
    settings  the section `[tracking]`
    """

    id: str
    name: str
    config: Mapping[str, Any]
    folder: Path
    step: int
    settings: TrackingSettings


class CompletionRow(NamedTuple):
    """A row of the table of completions. `reward` is None where the completion has no valid one; `advantage`, of its
    last token, is None where its group was left out."""

    prompt: str
    completion: str
    reward: float | None
    advantage: float | None
    parts: str
    tokens: int
    ended: str


class Tracker(Protocol):
    """Shows the metrics of one run. A thread of its own calls it, in the order of the steps.

    A method that fails raises: the tracker is closed, another one is made after a while, and its `begin` says where to
    go on. So a tracker that raised in `metrics` must not show that step, or must count it in the next `begin`.
    """

    def begin(self, run: TrackedRun) -> int:
        """Open the run, or reopen it; returns the last step that is shown, -1 for none: later ones follow.

        Steps after `run.step` come again. A tracker that can take points back removes those that it has of them and
        returns at most `run.step`; of another these points stay, and the steps are not shown twice.
        """
        ...

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        """A table of completions of `step`, before the metrics of that step."""
        ...

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of `step`, by their names in `metrics.jsonl`. Then the step is shown."""
        ...

    def close(self) -> None:
        """Write everything that was shown, and close. Also called after `begin` failed."""
        ...
