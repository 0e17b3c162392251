"""`[tracking]`: where the metrics of a run are shown in addition to its directory."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

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
