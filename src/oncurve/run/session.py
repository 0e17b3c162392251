"""A run from start to end, as on the command line: print the plan, show the steps, leave a complete directory."""

import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from oncurve.base.errors import ConfigError, LostStateError, command
from oncurve.base.imports import trusting
from oncurve.base.output import visible
from oncurve.config import IN_MEMORY, RunConfig, brought_by, check_complete, plan, to_tables, to_toml
from oncurve.display import Progress, Screen, say, wrapped
from oncurve.doctor import Watch
from oncurve.durable import DiskError, numbered, read_log, verify
from oncurve.forecast import check_memory
from oncurve.machine import contention
from oncurve.models.loading import ADAPTER
from oncurve.report import rendered, write_report
from oncurve.run.arguments import free_directory, run_name
from oncurve.run.assembly import Overrides, Run, assemble
from oncurve.run.continuing import (
    Returns,
    check_tracking,
    continued,
    identity_of,
    open_to_resume,
    resolved_as,
    resumed_config,
    worth_saying,
)
from oncurve.run.directory.folder import CONFIG, ROWS, SFT, SFT_ROWS, RunDirectory
from oncurve.tracking import Follower, TrackedRun, Tracking, trackers
from oncurve.trainer import StepResult


def train_recipe(config: RunConfig, base: Path, out: Path | None, recipe: str | Path = "run") -> str | None:
    """Train into `out` (None: a free folder under runs/); returns the signal that stopped it, or None.

    `recipe` is what the configuration was loaded from: the folder is called after it and the model.

    Raises UserError, before anything expensive, for everything that the user can fix; nothing is overwritten.
    """
    check_complete(config)
    check_tracking(config)
    out = out or free_directory(run_name(recipe, config))
    RunDirectory.check_free(out)
    console = Screen()
    say(console, *check_memory(config))
    returns = Returns(out)

    def begin() -> str | None:
        with assemble(config, base) as run:  # also where a warm start comes first: what is wrong ends the run now
            create_directory(run, out)
            if not config.warm_starts:
                return finish(run, console, returns=returns)
        return _again(out, returns)

    return returns.over(begin, partial(_again, out, returns))


def train_or_resume(config: RunConfig, base: Path, out: Path) -> str | None:
    """Train into `out`, or continue the run that is there with the settings of `config`.

    For schedulers that start one command again and again; a finished run is left as it is. Raises what `train_recipe`
    and `resume_run` do.
    """
    if not (out / CONFIG).is_file():
        return train_recipe(config, base, out)
    check_complete(config)
    with trusting(known=brought_by(config)):
        before, _, folder = resumed_config(out)
    return go_on(out, before, resolved_as(before, config, (out / ROWS).is_file()), folder)


def resume_any(directory: Path, overrides: Sequence[str] = (), changed: bool = False) -> str | None:
    """Continue a run of `oncurve train` or `oncurve reward-model train`; returns the signal that stopped it, or None.

    `overrides`: settings that change from now on; `changed`: continue although others or data have changed, which is
    not exact. Raises UserError for what the user can fix.
    """
    sections: set[str] = set()
    with suppress(OSError, ValueError, RecursionError):  # `load_config` reports what is wrong with the file
        sections = set(tomllib.loads((directory / CONFIG).read_text(encoding="utf-8")))
    if "reward_model" in sections and "rewards" not in sections:
        from oncurve.run.commands.reward_models import resume_reward_model

        if overrides:
            key = overrides[0].partition("=")[0]
            raise ConfigError(f"{key}: the training of a reward model resumes with the settings that it began with")
        return resume_reward_model(directory, changed)
    return resume_run(directory, overrides, changed)


def resume_run(directory: Path, overrides: Sequence[str] = (), changed: bool = False) -> str | None:
    """Continue the run in `directory` from its newest valid checkpoint; returns the signal that stopped it, or None.

    `overrides`: settings from now on, which the directory keeps; `changed`: continue although other settings or data
    have changed. The output and the directory say what is not exact.
    Raises RunDirectoryError: it is not a run, another run holds it, or it has changed. ConfigError: a setting that
    cannot change. CheckpointError: no checkpoint verifies.
    """
    return go_on(directory, *resumed_config(directory, overrides), changed)


def go_on(directory: Path, before: RunConfig, now: RunConfig, base: Path, changed: bool = False) -> str | None:
    """Continue the run in `directory`, which has the settings `before`, with those of `now`."""
    returns = Returns(directory)
    begin = partial(_go_on, directory, before, now, base, changed, returns)
    return returns.over(begin, partial(_again, directory, returns))


def _again(directory: Path, returns: Returns) -> str | None:
    """Continue the run in `directory` as it is there."""
    with trusting(given=True):  # this process has had it
        return _go_on(directory, *resumed_config(directory), False, returns)


def _go_on(
    directory: Path, before: RunConfig, now: RunConfig, base: Path, changed: bool, returns: Returns
) -> str | None:
    console = Screen()
    resumption = open_to_resume(directory, before, now, base, changed)
    with resumption.held:
        if resumption.finished:
            changes = map(str, worth_saying(resumption.changes, now))
            about = {"r": resumption, "c": now, "end": end_of(directory), "changes": changes}
            say(console, *rendered("finished.j2", command=command, **about).splitlines())
            return None
        if now.warm_starts and not resumption.done:
            returns.share(None)  # `run.max_minutes` begins here
            stopped = warm_up(now, base, directory)
            if stopped is not None:
                return stopped
        with continued(resumption, now, base, console) as run:
            return finish(run, console, returns=returns)


def warm_up(config: RunConfig, base: Path, directory: Path, given: Any = None) -> str | None:
    """Make or continue the warm start of the run in `directory`, a run of its own in the folder `sft`; returns the
    signal that stopped it, or None.

    `given` are settings for objects that no file holds.
    """
    folder = directory / SFT
    if not verify(folder / "model"):
        return None
    if (folder / CONFIG).is_file():
        with trusting(given=True):  # the run has had it
            return go_on(folder, *resumed_config(folder, given=given))
    stage, name = config.stage, f"{config.run.name or directory.name}-sft"
    return train_recipe(stage.model_copy(update={"run": stage.run.model_copy(update={"name": name})}), base, folder)


def create_directory(run: Run, out: Path) -> None:
    """Make the run's directory, after all checks, and begin."""
    directory = RunDirectory.create(out, run.trainer.config.environment)
    with directory.beginning():
        run.config.cluster.check_folder(run.learner, out)
        data = run.config.data.kept_as(out / ROWS)  # a resumed run needs the rows, too
        config = run.config.model_copy(update={"data": data, "sft": run.config.sft.kept_as(out / SFT_ROWS)})
        content = to_toml(config)
        identity = directory.keep_identity(identity_of(config, out), content)
        directory.keep_config(content)
    run.open_directory(directory, identity)
    run.record()


def finish(
    run: Run, console: Console, *observers: Callable[[StepResult], None], returns: Returns | None = None
) -> str | None:
    """Print the plan, train the remaining steps, and write model and report; the report also where the run ends early.

    Returns the name of the signal that ended it, or None. A run without a directory writes nothing. `returns`: the
    caller goes on with the run after a loss of state, as far as that allows it.
    """
    path = run.directory.path if run.directory is not None else None
    tracking = track(run)
    if returns is None or not returns.count:
        lines = (*plan(run.config, run.facts()), *run.rewards.announcements, "")
        say(console, *(wrapped(line, console.width) if console.is_terminal else line for line in lines))
    if returns is not None:
        run.trainer.config = replace(run.trainer.config, max_minutes=returns.share(run.config.run.max_minutes))

    def started(metrics: dict[str, float]) -> None:
        run.before.update(metrics)
        progress.start(metrics)

    try:
        earlier = [] if path is None else read_log(path / "metrics.jsonl", damaged=True)
        rewards = [line["reward/mean"] for line in earlier if "reward/mean" in line]
        with Progress(run.config.run.steps, console, rewards=rewards) as progress:
            run.trainer.on_start = started
            stopped = run.train(*observers, shown_by(progress, run), shown_to(tracking, progress.say), _reports_of(run))
            run.check_kept()
    except BaseException as error:
        say(console, *tracking.close(None if isinstance(error, Exception) else 0))
        goes_on = isinstance(error, LostStateError) and returns is not None and returns.allowed
        if path is not None and not goes_on:
            run.check_kept()  # else there is nothing to go on with
            lines = (*_without_checkpoint(run, path, error), stopped_at(run, type(error).__name__), *_reported(path))
            error.add_note("\n".join(lines))  # what to do stands below the error
        raise
    tracking.end()
    if path is None:
        say(console, *end_of(None, run), *([] if stopped is None else [f"stopped by {stopped}"]))
        return stopped
    if stopped is None:
        try:
            run.save_model(path / "model")  # what the run was for comes first
            if run.iterations is not None:
                run.iterations.learner.export(path / "reward_model")
        except (DiskError, KeyboardInterrupt) as error:
            say(console, *tracking.close())
            how = f"{'once there is space, ' * isinstance(error, DiskError)}this writes it: {how_to_go_on(run)}"
            error.add_note("\n".join((f"all steps are in a checkpoint, but not the model; {how}", *_reported(path))))
            raise
        finally:
            run.check_kept()
        say(console, "", *end_of(path, run, _reported(path)))
    else:
        say(console, "", stopped_at(run, stopped), *(_reported(path) or [f"report  {path / 'report.html'}"]))
    say(console, *tracking.close())
    return stopped


def _without_checkpoint(run: Run, path: Path, error: BaseException) -> list[str]:
    """Save the model of a run whose last step is done, although a full disk has refused its last checkpoint.

    Returns a line on it.
    """
    if not (isinstance(error, DiskError) and run.trainer.is_done):
        return []
    step = run.trainer.state.step
    folder = path / f"model-{step:06d}"  # as that of a run which goes on: a resume writes `model`
    try:
        run.save_model(folder)
    except DiskError:
        return [f"step {step}, the last, is done, but there was no space for its checkpoint, nor for the model"]
    return [f"step {step}, the last, is done, but there was no space for its checkpoint; the model is in {folder}"]


def end_of(path: Path | None, run: Run | None = None, reported: Sequence[str] = ()) -> list[str]:
    """Return the lines at the end of a `run`: why it ended early, its best checkpoint, what it has left in `path`."""
    adapter, kept = (None, {}) if path is None else (path / "model" / ADAPTER, dict(numbered(path / "checkpoints")))
    found = {"path": path, "run": run, "reported": reported, "adapter": adapter, "kept": kept}
    return rendered("end.j2", command=command, **found).splitlines()


def shown_by(progress: Progress, run: Run) -> Callable[[StepResult], None]:
    """Return an observer that shows each step, each new alarm of the doctor's rules, and once a notice of other
    processes.

    The first fault of a reward is quoted.
    """
    quoted, watch = False, Watch(to_tables(run.config), run.trainer.config.environment)

    def show(result: StepResult) -> None:
        nonlocal quoted
        progress.step(result.metrics)
        faults = [score.fault for group in result.groups for score in group.scores if score.fault is not None]
        if faults and not quoted:
            quoted = True
            where = f"step {result.metrics['step']:.0f}: the first fault ({len(faults)} here)"
            progress.say(f"{where}: {visible(faults[0])}")
        for finding in watch.step(result.metrics, result.groups):
            progress.advise(finding.text())
        held_up = contention.notice()
        if held_up is not None:
            progress.say(held_up)

    return show


def stopped_at(run: Run, stopped: str) -> str:
    """Return what stopped the run, the step from which it continues, and the command for it."""
    assert run.directory is not None
    assert run.trainer.checkpoints is not None
    step = run.trainer.checkpoints.newest
    where = f"after step {step}" if step else "from the beginning (no checkpoint had been written)"
    return f"stopped by {stopped}; to continue {where}: {how_to_go_on(run)}"


def how_to_go_on(run: Run) -> str:
    """Return the command that resumes the run; for a run with objects, the Python call that takes them again."""
    assert run.directory is not None
    path = run.directory.path
    if path.name == SFT and (path.parent / CONFIG).is_file():  # a warm start goes on with its run
        path = path.parent
    call, objects = call_to_go_on(path, run.config, run.given)
    return f"{call}   (in Python)" if objects else command("resume", path)


def call_to_go_on(path: Path, config: RunConfig, given: Overrides) -> tuple[str, list[str]]:
    """Return the Python call that resumes the run in `path`, and the objects that it takes again."""
    functions = any(IN_MEMORY in str(table) for table in to_tables(config)["rewards"])
    in_memory = to_tables(config)["environment"] if config.environment.objects else {}
    objects = [
        *(["model"] if given.model is not None else []),
        *(["tokenizer"] if given.model is not None and given.model.tokenizer is not None else []),
        *(["reference"] if given.reference is not None else []),
        *(["reward"] if functions else []),
        *(name for name, key in (("environment", "classes"), ("tools", "functions")) if in_memory.get(key)),
    ]
    return f"oncurve.resume({', '.join([repr(str(path)), *(f'{name}={name}' for name in objects)])})", objects


def track(run: Run) -> Tracking:
    """Begin the trackers that the settings name; none where the run has no directory. Returns at once."""
    settings, directory = run.config.tracking, run.directory
    if directory is None or not settings.to:
        return Tracking(settings)
    told = TrackedRun(
        id=(directory.identity() or {}).get("id", directory.path.resolve().name),
        name=settings.name or run.config.run.name or directory.path.resolve().name,
        config=to_tables(run.config),
        folder=directory.path,
        step=run.trainer.state.step,
        settings=settings,
    )
    log = directory.path / "metrics.jsonl"
    return Tracking(settings, [Follower(name, make, told, log) for name, make in trackers(settings).items()])


def shown_to(tracking: Tracking, say: Callable[[str], None]) -> Callable[[StepResult], None]:
    """Return an observer that gives each step to the trackers, and prints their news."""

    def observe(result: StepResult) -> None:
        tracking.recorded(result.step, result.groups, result.advantages)
        for line in tracking.news():
            say(line)

    return observe


def _reports_of(run: Run) -> Callable[[StepResult], None]:
    """Return an observer that writes the report at checkpoints, for at most 2 % of the time.

    A page that cannot be written is left to the end of the run.
    """
    due = 0.0

    def write(result: StepResult) -> None:
        nonlocal due
        checkpoints, began = run.trainer.checkpoints, time.monotonic()
        if checkpoints is not None and checkpoints.newest == result.step and began >= due:
            _reported(checkpoints.directory.parent)
            due = began + 50 * (time.monotonic() - began)

    return write


def _reported(path: Path) -> list[str]:
    """Write the report; returns a line if that failed, which has no other effect."""
    try:
        write_report(path)
    except Exception as error:
        return [f"no report was written: {error}"]
    return []
