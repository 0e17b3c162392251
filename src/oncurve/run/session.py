"""A run from start to end as the command line has it: say the plan, show the steps, leave a complete directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from rich.console import Console

from oncurve.data import InMemory
from oncurve.display import Progress, Screen, say
from oncurve.errors import CheckpointError, command
from oncurve.report import write_report
from oncurve.run.assemble import Run, assemble
from oncurve.run.checks import check_complete
from oncurve.run.config import RunConfig
from oncurve.run.directory import RunDirectory
from oncurve.run.forecasting import check_memory
from oncurve.run.loading import load_config, to_toml
from oncurve.run.plan import plan
from oncurve.spec import usable_path
from oncurve.trainer import StepResult

__all__ = ["create_directory", "finish", "free_directory", "restore", "resume_run", "stopped_at", "train_recipe"]

ROWS = "data.jsonl"


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


def resume_run(directory: Path) -> str | None:
    """Go on with the run in `directory`, from its newest checkpoint that verifies; the signal that stopped it, or None.

    Raises RunDirectoryError: it is not a run, or another process holds it. CheckpointError: no checkpoint verifies.
    """
    RunDirectory.check_run(directory)
    config, base = load_config(directory / "config.toml")
    console = Screen()
    with closing(RunDirectory.open(directory)) as held:
        if held.is_finished(config.run.steps):
            say(console, f"{directory} is finished: all {config.run.steps} steps are done", *_products(directory))
            return None
        with assemble(config, base) as run:
            restore(run, held, console)
            return finish(run, console)


def restore(run: Run, held: RunDirectory, console: Console) -> None:
    """Take up in `run` what `held` has, and say where that is. Raises CheckpointError where nothing verifies."""
    run.open_directory(held)
    try:
        lines = run.restore()
    except CheckpointError as error:
        again = command("train", held.path / "config.toml", "--out", "ANOTHER")
        raise CheckpointError(f"{error}\nPut back what is missing, or train again: {again}") from error
    say(console, *lines, f"{held.path}: {run.trainer.state.step} of {run.config.run.steps} steps are done")


def create_directory(run: Run, out: Path) -> None:
    """Make the run's directory, now that everything it needs has been checked, and begin."""
    directory = RunDirectory.create(out, run.trainer.environment or {})
    run.open_directory(directory)
    config = run.config
    if isinstance(config.data, InMemory):  # a resume needs the rows, too
        config = config.model_copy(
            update={"data": config.data.written_to(out / ROWS).model_copy(update={"path": ROWS})}
        )
    directory.keep_config(to_toml(config))
    run.begin()


def finish(run: Run, console: Console, *observers: Callable[[StepResult], None]) -> str | None:
    """Say the plan, train what is left, and leave model and report behind; report also where it ended early.

    Returns the name of the signal that ended it, or None. A run without a directory leaves nothing behind.
    """
    path = run.directory.path if run.directory is not None else None
    say(console, *plan(run.config, run.facts()), *run.rewards.announcements, "")
    try:
        with Progress(run.config.run.steps, console) as progress:
            stopped = run.train(*observers, lambda result: progress.step(result.metrics))
    except Exception:
        if path is not None:
            with suppress(Exception):  # what went wrong is the news, not that the page about it did too
                write_report(path)
        raise
    if path is None:
        return stopped
    write_report(path)
    if stopped is None:
        run.save_model(path / "model")
        run.save_reward_model(path / "reward_model")
        say(console, "", *_products(path))
    else:
        say(console, "", stopped_at(run, stopped), f"report  {path / 'report.html'}")
    return stopped


def stopped_at(run: Run, stopped: str) -> str:
    """What stopped the run, from where it will go on, and how."""
    assert run.directory is not None
    assert run.trainer.checkpoints is not None
    step = run.trainer.checkpoints.newest
    where = f"after step {step}" if step else "from the beginning: no checkpoint had been written"
    return f"stopped by {stopped}; it goes on {where}, with: {command('resume', run.directory.path)}"


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
