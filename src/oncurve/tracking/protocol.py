"""The interface of a tracker, and what it is told of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, Field

from oncurve.components import Component, Impossible


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{' and '.join(twice)} stands there twice")
    return names


class TrackingSettings(Component):
    """Experiment trackers that show the metrics of a run, which its directory has in any case. The page tracking.md has
    an example."""

    to: Annotated[tuple[str, ...], AfterValidator(_distinct)] = ()
    """The trackers. Empty: none."""

    project: str = Field(default="oncurve", min_length=1)
    """The project that the run belongs to in wandb and trackio."""

    name: str | None = Field(default=None, min_length=1)
    """The name of the run there; none: `run.name`, or the name of the run's folder."""

    tags: tuple[str, ...] = ()
    """Tags of the run."""

    mode: Literal["online", "offline"] | None = None
    """Offline: wandb writes files for `wandb sync`, trackio only its local database. None: wandb's own default, which
    the environment variable WANDB_MODE may set."""

    entity: str | None = Field(default=None, min_length=1)
    """wandb's team or user; none: the default of the account."""

    space: str | None = Field(default=None, min_length=1)
    """The Hugging Face Space that shows trackio's runs, "user/name"; none: the database of this machine."""

    completions_every: int = Field(default=10, ge=0, le=10**9)
    """Steps between tables of completions; 0: no tables."""

    completions_rows: int = Field(default=8, ge=1, le=1000)
    """The most completions in a table: those of the step's first groups."""

    timeout_seconds: float = Field(default=30.0, gt=0, le=86400)
    """How long the end of a run waits for trackers that have not shown all steps yet."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda chosen: chosen.mode == "offline" and chosen.space is not None,
            'tracking.mode = "offline" sends nothing to tracking.space; leave one of them out',
        ),
    )


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

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        """A table of completions of `step`, before the metrics of that step."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of `step`, by their names in `metrics.jsonl`. Then the step is shown."""

    def close(self) -> None:
        """Write everything that was shown, and close. Also called after `begin` failed."""
