"""`oncurve runs`: the run directories below a folder, with their state, step, best evaluation and age."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from oncurve import durable
from oncurve.base.errors import OncurveError, RunDirectoryError
from oncurve.base.paths import usable_path
from oncurve.report import read_run, table
from oncurve.run.directory.folder import CONFIG, ENVIRONMENT, IDENTITY, LOCK, SFT

State = Literal["running", "finished", "stopped", "damaged"]
DEEPEST = 3
MEASURED = ("eval/accuracy", "eval/reward")
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class ListedRun:
    """One run on the disk.

    state         running: a process holds it; finished: its model and report are written; stopped: `oncurve resume`
                  continues it; damaged: its config.toml cannot be read
    step, steps   steps done, and of how many (None: its recipe counts otherwise)
    metric, best, best_step   the best evaluation, by `checkpoint.best` or accuracy or reward; None without any
    best_kept     its checkpoint is there; None where it was before step 1, or there is none
    age_seconds   since it wrote a line
    warm_start:   it has begun its warm start, and none of its own steps is done
    """

    path: Path
    state: State
    step: int = 0
    steps: int | None = None
    metric: str | None = None
    best: float | None = None
    best_step: int | None = None
    age_seconds: float = 0.0
    best_kept: bool | None = None
    warm_start: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the run as a row of a table."""
        best = "-" if self.best is None else f"{self.metric} {self.best:.4g} at {self.best_step}"
        best += " (no checkpoint of it)" if self.best_kept is False else ""
        steps = f"{self.step}" if self.steps is None else f"{self.step}/{self.steps}"
        done = "warm start" if self.warm_start else steps
        return str(self.path), self.state, done, best, _ago(self.age_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "warm_start"} | {"path": str(self.path)}


def list_runs(folder: Path | None = None) -> list[ListedRun]:
    """Return the runs below `folder` (None: `runs`), or the one that it is, the last to write first.

    Nothing is changed, and a run that goes on is not disturbed. Raises RunDirectoryError: there is no such folder.
    """
    root = usable_path(folder or Path("runs"), "DIR")
    if not root.is_dir():
        if folder is None:
            return []
        raise RunDirectoryError(f"{root} is not a folder. Name one that holds runs; the default is runs.")
    return sorted((_listed(path) for path in find_runs(root)), key=lambda run: run.age_seconds)


def table_of(runs: list[ListedRun]) -> str:
    """Return the runs as lines to read."""
    if not runs:
        return "There are no runs here. `oncurve train RECIPE` begins one, in runs/."
    return "\n".join(table([("run", "state", "step", "best", "age"), *(run.cells() for run in runs)]))


def find_runs(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Return the run directories in and below `folder`; nothing inside of one is looked at, and no link followed."""
    if (folder / CONFIG).is_file() and any((folder / name).is_file() for name in (ENVIRONMENT, IDENTITY)):
        yield folder
    elif depth:
        with suppress(OSError):
            for entry in sorted(folder.iterdir()):
                if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                    yield from find_runs(entry, depth - 1)


def _listed(path: Path) -> ListedRun:
    logs = [log for log in (path / "metrics.jsonl", path / SFT / "metrics.jsonl") if log.is_file()]
    age = time.time() - max(file.stat().st_mtime for file in logs or [path / CONFIG])
    running = durable.is_held(path / LOCK)
    try:
        record = read_run(path)
    except (OSError, OncurveError):  # another user's, perhaps: the others are listed all the same
        record = None
    if record is None or record.config is None:
        return ListedRun(path, "running" if running else "damaged", age_seconds=age)
    lines = record.metrics
    step = int(lines[-1].get("step", 0)) if lines else 0
    steps = record.setting("run", "steps")
    finished = (path / "model" / durable.MANIFEST).is_file() and not running
    state: State = "running" if running else "finished" if finished else "stopped"
    named = record.setting("checkpoint", "best")
    metric = next((key for key in (named, *MEASURED) if any(key in line for line in lines)), None)
    stored = {0, *dict(durable.numbered(path / "checkpoints"))}  # 0: what was before training
    measured = (line for line in lines if metric in line)
    best = max(measured, key=lambda line: (line[str(metric)], line.get("step") in stored), default=None)
    if best is None:
        warm_start = not step and (path / SFT / CONFIG).is_file()
        return ListedRun(path, state, step, steps, age_seconds=age, warm_start=warm_start)
    at = int(best.get("step", 0))
    kept = at in stored if at else None
    return ListedRun(path, state, step, steps, metric, float(best[str(metric)]), at, age, kept)


def _ago(seconds: float) -> str:
    """Return the age in its largest unit: `"3 h"`."""
    unit, size = next((pair for pair in UNITS if seconds >= pair[1]), UNITS[-1])
    return f"{max(0, int(seconds / size))} {unit}"
