"""A run continues: which settings may change, what has changed since is refused or taken, said, and kept.

It goes on in its directory, or after a loss of state in the same process, from its last checkpoint.
"""

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from oncurve.base.errors import CheckpointError, ConfigError, LostStateError, command, refuse
from oncurve.base.imports import trusting
from oncurve.base.output import urgent
from oncurve.config import RUN, RunConfig, brought_by, load_config, to_tables, to_toml
from oncurve.display import say
from oncurve.durable import numbered
from oncurve.run.assembly import Overrides, Run, assemble
from oncurve.run.directory.folder import CONFIG, ROWS, SFT, RunDirectory, if_it_fails
from oncurve.run.directory.identity import (
    RESUME,
    defaults_of,
    flat,
    identify,
    shown_value,
    steps_done,
    take_up,
)
from oncurve.tracking import trackers

RETURNS = 3
"""How often a run goes back without a newer checkpoint than the last time. Then the loss ends it."""

Ended = TypeVar("Ended")


class Returns:
    """The number of returns of the run in `directory` to a checkpoint (`count`), and whether it may return again.

        stopped_by = Returns(directory).over(begin, again)

    `again` continues the run as `oncurve resume` does, so it goes on to the same numbers.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.count = self._in_a_row = 0
        self._from = -1
        self._began: float | None = None

    def over(self, begin: Callable[[], Ended], again: Callable[[], Ended]) -> Ended:
        """Return what `begin()` returns; after each loss of state, what `again()` does.

        Raises what they raise, and LostStateError: nothing of the run is written, or it does not get further.
        """
        attempt = begin
        while True:
            try:
                return attempt()
            except LostStateError as error:
                if not self.allowed:
                    raise
                self._go_back(error.cause)
            gc.collect()  # what is lost has its memory in reference cycles, and is made a second time now
            attempt = again

    @property
    def allowed(self) -> bool:
        """Return whether the run goes back after another loss."""
        return (self._directory / CONFIG).is_file() and (self._newest > self._from or self._in_a_row < RETURNS)

    def share(self, minutes: float | None) -> float | None:
        """Return the part of `run.max_minutes` that is left; the time begins with the first call. None: there is no
        limit.
        """
        self._began = time.monotonic() if self._began is None else self._began
        return None if minutes is None else max(0.0, minutes - (time.monotonic() - self._began) / 60)

    @property
    def _newest(self) -> int:
        return max((step for step, _ in numbered(self._directory / "checkpoints")), default=0)

    def _go_back(self, cause: str) -> None:
        step = self._newest
        self._in_a_row = 1 if step > self._from else self._in_a_row + 1
        self._from, self.count = step, self.count + 1
        where = f"to its checkpoint of step {step}" if step else "to its beginning"
        urgent(f"oncurve: {cause}; the run goes back {where} and on from there")


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


@dataclass(frozen=True)
class Resumption:
    """A run's directory, held, and how the run continues in it.

    identity   the run's identity from now on
    lines      what is printed
    inexact    whether it was asked for a setting that decides the numbers
    done       the steps that are done
    finished   none is left, and model and report are written
    changes    the settings that this resume changes
    """

    held: RunDirectory
    identity: dict[str, Any]
    lines: list[str]
    inexact: bool
    changes: tuple[Change, ...]
    done: int
    finished: bool


def resumed_config(
    directory: Path, overrides: Iterable[str] = (), settings: Any = None, given: Any = None
) -> tuple[RunConfig, RunConfig, Path]:
    """Return a run's configuration as its directory has it, the same with what a resume changes, and the folder.

    `given` are settings for objects that no file holds. Raises RunDirectoryError: it is no run. ConfigError.
    """
    RunDirectory.check_run(directory)
    before, base = load_config(directory, settings=given)
    words = list(overrides)
    if not words and not settings:
        return before, before, base
    now, _ = load_config(directory, words, settings={**(given or {}), **(settings or {})})
    return before, now, base


def check_tracking(config: RunConfig, kept: bool = True) -> None:
    """Raises ConfigError for trackers that cannot work here. `kept`: whether the run has a directory."""
    if trackers(config.tracking) and not kept:
        raise ConfigError("tracking.to: trackers follow the log in a run directory; name one: out='runs/mine'")


def open_to_resume(directory: Path, before: RunConfig, now: RunConfig, base: Path, changed: bool = False) -> Resumption:
    """Hold the directory of a run that continues with `now`; it has `before`.

    Raises RunDirectoryError: another run holds it, or it has changed. ConfigError: a setting cannot change.
    """
    check_tracking(now)
    held = RunDirectory.open(directory)
    with if_it_fails(held.close):
        changes = changes_between(before, now)
        done = steps_done(held)
        check_changes(before, now, changes, done)
        patience = now.eval.patience if now.checkpoint.best == before.checkpoint.best else 0
        models = ("model", *["reward_model"] * (now.iterative.steps > 0))
        finished = now.run.epochs is None and held.is_finished(now.run.steps, patience, models)
        if finished:
            return Resumption(held, held.identity() or {}, [], False, changes, done, finished)
        wanted = {change.key for change in changes}
        taken_up = take_up(held, identity_of(now, base), changed, wanted, defaults_of(now, RUN))
        held.sign(taken_up[0])
        return Resumption(held, *taken_up, changes, done, finished)


def continued(
    resumption: Resumption, config: RunConfig, base: Path, console: Console, given: Overrides | None = None
) -> Run:
    """Put the run together that continues in the directory which `resumption` holds, and restore it.

    Raises UserError, and what `restore` raises; the directory is let go of then.
    """
    with if_it_fails(resumption.held.close):
        say(console, *resumption.lines)
        start = resumption.held.path / SFT / "model"
        begins = config.warm_starts and not resumption.done and start.is_dir()  # else the warm start was stopped
        run = assemble(config, base, given, resumed=True, start=start if begins else None)
    with if_it_fails(run.close):
        restore(run, resumption, console)
    return run


def restore(run: Run, resumption: Resumption, console: Console) -> None:
    """Restore `run` from its directory, keep what changes, and print its step.

    Raises CheckpointError: no checkpoint verifies.
    """
    held, identity = resumption.held, resumption.identity
    run.config.cluster.check_folder(run.learner, held.path)
    run.open_directory(held, identity)
    try:
        lines = run.restore()
    except CheckpointError as error:
        again = command("train", held.path / CONFIG, "--out", "ANOTHER")
        raise CheckpointError(f"{error}\nPut back what is missing, or train again: {again}") from error
    if any(change.key == "checkpoint.best" for change in resumption.changes):  # numbers of another metric
        run.trainer.state = replace(run.trainer.state, best=None, best_step=0, since_best=0)
    step = run.trainer.state.step
    if run.config.warm_starts and not step:
        lines = [f"the run begins with the model of its warm start, {held.path / SFT / 'model'}", *lines[1:]]
    if resumption.changes:
        words = [str(change) for change in worth_saying(resumption.changes, run.config)]
        held.change(step, to_toml(run.config), identity, words)
        if resumption.inexact:
            lines.append(f"exact up to step {step}; from step {step + 1} on with {', '.join(words)}")
        elif not any(line.startswith("not exact") for line in (*resumption.lines, *lines)):
            lines.append(f"exact: the run goes on to the same numbers, with {', '.join(words)}")
    if not resumption.finished and not run.trainer.is_done:
        held.set_products_aside(step)
    say(console, *lines, f"{held.path}: {step} of {run.config.run.steps} steps are done")


def continue_with(run: Run, directory: Path, console: Console) -> bool:
    """Restore `run`, which its own settings have put together, from a directory that has the same run or an earlier
    stage of it; False: that is finished.

    Settings that differ change from here on, as in a resume. Raises RunDirectoryError: it is no run, or another run
    holds it. ConfigError: a setting cannot change.
    """
    rewards = {"rewards": list(run.config.rewards)}  # functions are in no file
    with trusting(known=brought_by(run.config)):
        before, _, base = resumed_config(directory, given=rewards)
    now = resolved_as(before, run.config, (directory / ROWS).is_file())
    resumption = open_to_resume(directory, before, now, base)
    with if_it_fails(resumption.held.close):
        run.config = now
        say(console, *resumption.lines)
        restore(run, resumption, console)
    return not resumption.finished


def identity_of(config: RunConfig, base: Path) -> dict[str, Any]:
    """Return the identity of a run. How long it is belongs to it where the learning rate's schedule depends on that,
    and the number of ranks where they divide the model.
    """
    length = ("run.steps", "run.epochs") if config.learner.depends_on_length else ()
    ranks = ("cluster.learner_ranks",) if config.cluster.facts.divided else ()
    return identify(config, RUN, base, counts=(*length, *ranks))
