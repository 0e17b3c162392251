"""A run continues: what has changed since is refused or taken, said, and kept in its directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from oncurve.base.errors import CheckpointError, command
from oncurve.base.imports import trusting
from oncurve.config import RUN, RunConfig, brought_by, load_config, to_toml
from oncurve.display import say
from oncurve.run.assembly import Overrides, Run, assemble
from oncurve.run.directory.changes import Change, changes_between, check_changes, resolved_as, worth_saying
from oncurve.run.directory.folder import CONFIG, ROWS, SFT, RunDirectory
from oncurve.run.directory.identity import TakenUp, defaults_of, identify, steps_done, take_up
from oncurve.run.tracking import check_tracking


@dataclass(frozen=True)
class Resumption:
    """A run's directory, held, and how the run continues in it.

    done       the steps that are done
    finished   none is left, and model and report are written
    changes    the settings that this resume changes
    """

    held: RunDirectory
    taken_up: TakenUp
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


def open_to_resume(directory: Path, before: RunConfig, now: RunConfig, base: Path, changed: bool = False) -> Resumption:
    """Hold the directory of a run that continues with `now`; it has `before`.

    Raises RunDirectoryError: another run holds it, or it has changed. ConfigError: a setting cannot change.
    """
    check_tracking(now)
    held = RunDirectory.open(directory)
    try:
        changes = changes_between(before, now)
        done = steps_done(held)
        check_changes(before, now, changes, done)
        patience = now.eval.patience if now.checkpoint.best == before.checkpoint.best else 0
        finished = now.run.epochs is None and held.is_finished(now.run.steps, patience)
        if finished:
            return Resumption(held, TakenUp(held.identity() or {}, []), tuple(changes), done, finished)
        wanted = {change.key for change in changes}
        taken_up = take_up(held, identity_of(now, base), changed, wanted, defaults_of(now, RUN))
        held.sign(taken_up.identity)
        return Resumption(held, taken_up, changes, done, finished)
    except BaseException:
        held.close()
        raise


def continued(
    resumption: Resumption, config: RunConfig, base: Path, console: Console, given: Overrides | None = None
) -> Run:
    """Put the run together that continues in the directory which `resumption` holds, and restore it.

    Raises UserError, and what `restore` raises; the directory is let go of then.
    """
    try:
        say(console, *resumption.taken_up.lines)
        start = resumption.held.path / SFT / "model"
        begins = config.warm_starts and not resumption.done and start.is_dir()  # else the warm start was stopped
        run = assemble(config, base, given, resumed=True, start=start if begins else None)
    except BaseException:
        resumption.held.close()
        raise
    try:
        restore(run, resumption, console)
    except BaseException:
        run.close()
        raise
    return run


def restore(run: Run, resumption: Resumption, console: Console) -> None:
    """Restore `run` from its directory, keep what changes, and print its step.

    Raises CheckpointError: no checkpoint verifies.
    """
    held, identity = resumption.held, resumption.taken_up.identity
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
        if resumption.taken_up.inexact:
            lines.append(f"exact up to step {step}; from step {step + 1} on with {', '.join(words)}")
        elif not any(line.startswith("not exact") for line in lines):
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
    try:
        run.config = now
        say(console, *resumption.taken_up.lines)
        restore(run, resumption, console)
    except BaseException:
        resumption.held.close()
        raise
    return not resumption.finished


def identity_of(config: RunConfig, base: Path) -> dict[str, Any]:
    """Return the identity of a run. How long it is belongs to it where the learning rate's schedule depends on that,
    and the number of ranks where they divide the model.
    """
    length = ("run.steps", "run.epochs") if config.learner.depends_on_length else ()
    ranks = ("cluster.learner_ranks",) if config.cluster.facts.divided else ()
    return identify(config, RUN, base, counts=(*length, *ranks))
