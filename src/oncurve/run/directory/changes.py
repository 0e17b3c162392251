"""Settings that change between a stop and a resume: which may, what is said of them, and why others may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from oncurve.base.errors import refuse
from oncurve.config import RUN, RunConfig, to_tables
from oncurve.run.directory.identity import RESUME, defaults_of, flat, shown_value


@dataclass(frozen=True)
class Change:
    """A setting with its value in the run's directory, and the new one; None: not set."""

    key: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key} = {shown_value(self.now)} (was {shown_value(self.was)})"


def changes_between(before: RunConfig, now: RunConfig) -> tuple[Change, ...]:
    """Return the settings that differ, sorted by key."""
    old, new = (dict(flat(to_tables(config, RUN))) for config in (before, now))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return tuple(Change(key, old.get(key), new.get(key)) for key in keys)


def worth_saying(changes: Sequence[Change], now: RunConfig) -> tuple[Change, ...]:
    """Return the `changes` to `now` without those that follow from another `kind` alone: keys that it does not have,
    and keys that only it has, at their defaults.
    """
    defaults = defaults_of(now, RUN)
    places = [change.key.rpartition(".")[0] for change in changes if change.key.endswith(".kind")]
    return tuple(
        change
        for change in changes
        if change.key.rpartition(".")[0] not in places
        or change.key.endswith(".kind")
        or (change.now is not None and (change.was is not None or change.now != defaults.get(change.key)))
    )


def check_changes(before: RunConfig, now: RunConfig, changes: Sequence[Change], done: int) -> None:
    """Raises ConfigError with a line for each change that a run which has `done` steps cannot take."""
    refused = [f"{change.key}: cannot change in a resume: {why}" for change in changes if (why := _reason(change.key))]
    if before.kl.needs_reference and not now.kl.needs_reference:
        refused.append("kl.coef: cannot become 0 in a resume: the checkpoints hold the reference; choose a small one")
    if before.cluster.facts.divided != now.cluster.facts.divided and done:
        refused.append(
            'cluster.sharding: cannot become "fsdp", or another than that, in a resume: the checkpoints hold the state '
            "in a file per rank, or whole; export the weights and begin a new run with them"
        )
    if now.run.epochs is None and now.run.steps < done:
        refused.append(f"run.steps: {now.run.steps} is less than the {done} steps that are done; choose more")
    refuse(refused)


def resolved_as(before: RunConfig, now: RunConfig, rows_kept: bool) -> RunConfig:
    """Return `now`, a recipe's configuration, with what the run began by it has resolved (`before`).

    That is the dtype, the number of steps, and the data, where the directory has kept the rows (`rows_kept`).
    """
    if now.model.dtype == "auto":
        now = now.model_copy(update={"model": now.model.model_copy(update={"dtype": before.model.dtype})})
    if now.run.epochs is not None:
        run = now.run.model_copy(update={"epochs": before.run.epochs, "steps": before.run.steps})
        now = now.model_copy(update={"run": run})
    if rows_kept:
        data = before.data.model_copy(update={"prompts_per_step": now.data.prompts_per_step})
        now = now.model_copy(update={"data": data})
    return now


def _reason(key: str) -> str | None:
    """Return why a setting cannot change, or None if it can."""
    if key in RESUME["changeable"]:
        return None
    return next((reason for pattern, reason in RESUME["fixed"].items() if fnmatchcase(key, pattern)), None)
