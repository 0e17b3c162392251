"""A run from start to end as the command line has it: say the plan, show the steps, leave a complete directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from oncurve import processors
from oncurve.data import InMemory
from oncurve.display import Progress, Screen, say
from oncurve.errors import CheckpointError, command
from oncurve.paths import usable_path
from oncurve.report import write_report
from oncurve.run.assemble import Run, assemble
from oncurve.run.checks import check_complete
from oncurve.run.config import RUN, RunConfig
from oncurve.run.directory import ROWS, RunDirectory
from oncurve.run.forecasting import check_memory
from oncurve.run.identity import identify, take_up
from oncurve.run.loading import load_config, to_tables, to_toml
from oncurve.run.plan import plan
from oncurve.run.schema import IN_MEMORY
from oncurve.trainer import StepResult

__all__ = [
    "create_directory",
    "finish",
    "free_directory",
    "how_to_go_on",
    "identity_of",
    "restore",
    "resume_run",
    "shown_by",
    "stopped_at",
    "train_recipe",
]


def train_recipe(config: RunConfig, base: Path, out: Path | None) -> str | None:
    """Train as `config` says into `out` (a free folder under runs/ if None); the signal that stopped it, or None.

    Raises UserError before anything expensive for whatever the user can mend; nothing is overwritten.
    """
    check_complete(config)
    out = out or free_directory(config.run.name or "run")
    RunDirectory.check_free(out)
    console = Screen()
    say(console, *check_memory(config))
    with assemble(config, base) as run:
        create_directory(run, out)
        return finish(run, console)


def resume_run(directory: Path, changed: bool = False) -> str | None:
    """Go on with the run in `directory`, from its newest checkpoint that verifies; the signal that stopped it, or None.

    `changed`: go on although settings or data are not what they were; it is said and noted that this is not exact.
    Raises RunDirectoryError: it is not a run, another run holds it, or it has changed. CheckpointError: no checkpoint
    verifies.
    """
    RunDirectory.check_run(directory)
    config, base = load_config(directory / "config.toml")
    console = Screen()
    with closing(RunDirectory.open(directory)) as held:
        if held.is_finished(config.run.steps):
            say(console, f"{directory} is finished: all {config.run.steps} steps are done", *_products(directory))
            return None
        identity, lines = take_up(held, identity_of(config, base), changed)
        say(console, *lines)
        with assemble(config, base) as run:
            restore(run, held, identity, console)
            return finish(run, console)


def identity_of(config: RunConfig, base: Path) -> dict[str, Any]:
    """See `identify`: `run.steps` decides the numbers where the learning rate's schedule ends with it."""
    decays = config.learner.schedule != "constant"
    return identify(config, RUN, base, counts=("run.steps",) if decays else ())


def restore(run: Run, held: RunDirectory, identity: Mapping[str, Any], console: Console) -> None:
    """Take up in `run` what `held` has, and say where that is. Raises CheckpointError where nothing verifies."""
    run.open_directory(held, identity)
    try:
        lines = run.restore()
    except CheckpointError as error:
        again = command("train", held.path / "config.toml", "--out", "ANOTHER")
        raise CheckpointError(f"{error}\nPut back what is missing, or train again: {again}") from error
    say(console, *lines, f"{held.path}: {run.trainer.state.step} of {run.config.run.steps} steps are done")


def create_directory(run: Run, out: Path) -> None:
    """Make the run's directory, now that everything it needs has been checked, and begin."""
    directory = RunDirectory.create(out, run.trainer.environment or {})
    try:
        config = run.config
        if isinstance(config.data, InMemory):  # a resume needs the rows, too
            config = config.model_copy(
                update={"data": config.data.written_to(out / ROWS).model_copy(update={"path": ROWS})}
            )
        identity = identity_of(config, out)
        directory.keep_identity(identity)
        directory.keep_config(to_toml(config))
    except BaseException:
        directory.abandon()
        raise
    run.open_directory(directory, identity)
    run.begin()


def finish(run: Run, console: Console, *observers: Callable[[StepResult], None]) -> str | None:
    """Say the plan, train what is left, and leave model and report behind; report also where it ended early.

    Returns the name of the signal that ended it, or None. A run without a directory leaves nothing behind.
    """
    path = run.directory.path if run.directory is not None else None
    say(console, *plan(run.config, run.facts()), *run.rewards.announcements, "")
    try:
        with Progress(run.config.run.steps, console) as progress:
            stopped = run.train(*observers, shown_by(progress))
    except BaseException as error:
        if path is not None:
            say(console, "", stopped_at(run, type(error).__name__), *_reported(path))
        raise
    if path is None:
        return stopped
    if stopped is None:
        run.save_model(path / "model")  # what the run was for comes first
        run.save_reward_model(path / "reward_model")
        say(console, "", *_reported(path), *_products(path))
    else:
        say(console, "", stopped_at(run, stopped), *(_reported(path) or [f"report  {path / 'report.html'}"]))
    return stopped


def shown_by(progress: Progress) -> Callable[[StepResult], None]:
    """An observer that shows each step, and says once where other processes hold the run up."""

    def show(result: StepResult) -> None:
        progress.step(result.metrics)
        held_up = processors.notice()
        if held_up is not None:
            progress.say(held_up)

    return show


def stopped_at(run: Run, stopped: str) -> str:
    """What stopped the run, from where it will go on, and how."""
    assert run.directory is not None
    assert run.trainer.checkpoints is not None
    step = run.trainer.checkpoints.newest
    where = f"after step {step}" if step else "from the beginning: no checkpoint had been written"
    return f"stopped by {stopped}; it goes on {where}, with: {how_to_go_on(run)}"


def how_to_go_on(run: Run) -> str:
    """The command that resumes the run; where it was given objects, the call that is given them again."""
    assert run.directory is not None
    path = run.directory.path
    functions = any(IN_MEMORY in str(table) for table in to_tables(run.config)["rewards"])
    objects = [
        *(["model"] if run.given.model is not None else []),
        *(["tokenizer"] if run.given.model is not None and run.given.model.tokenizer is not None else []),
        *(["reference"] if run.given.reference is not None else []),
        *(["reward"] if functions else []),
    ]
    if not objects:
        return command("resume", path)
    return f"oncurve.resume({str(path)!r}, {', '.join(f'{name}={name}' for name in objects)})   (in Python)"


def _reported(path: Path) -> list[str]:
    """Write the report; a line if that failed: it costs the page, and nothing else."""
    try:
        write_report(path)
    except Exception as error:
        return [f"no report was written: {error}"]
    return []


def _products(path: Path) -> list[str]:
    judge = path / "reward_model"
    return [
        f"model   {path / 'model'}   (Hugging Face form: transformers loads it as it is)",
        *([f"reward  {judge}   (the reward model after the last iteration)"] if judge.is_dir() else []),
        f"report  {path / 'report.html'}",
    ]


def free_directory(name: str) -> Path:
    """`runs/<name>`, or `runs/<name>-2` and so on: the first that does not exist."""
    usable_path(Path("runs") / name, "run.name")
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
        number += 1
