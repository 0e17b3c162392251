"""The run directory: made once, never overwritten, used by one process at a time.

config.toml        the resolved configuration             environment.json   what the run was started with
metrics.jsonl      one line a step                        rollouts/          every group of every step
checkpoints/       what a resume needs                    model/             the policy in Hugging Face form
report.html        the run on one page                    incidents/         batches of skipped updates
replay.jsonl       what iterations taught the reward model         reward_model/      as the last one left it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from oncurve import durable
from oncurve.errors import RunDirectoryError, command
from oncurve.spec import usable_path

__all__ = ["RunDirectory", "describe_environment", "environment_changes"]

EXACT_KEYS = (
    "torch",
    "transformers",
    "threads",
    "instruction_set",
    "machine",
    "device",
    "processor",
    "library_settings",
    "sample_results",
)


class RunDirectory:
    """A run's place on the disk. Holding it locks it: a second process is refused, not interleaved."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path, environment: dict[str, Any]) -> RunDirectory:
        """Make a new run at `path`, which must not exist or be an empty folder.

        Raises RunDirectoryError when something is there already: nothing of an earlier run is ever overwritten.
        """
        cls.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be made: {error.strerror}. Choose another --out.") from error
        run = cls(path, _locked(path))
        durable.write_file(path / "environment.json", durable.to_json(environment))
        return run

    def keep_config(self, config_toml: str) -> None:
        """Write `config.toml`, the last file of a run's beginning: a folder without it is no run."""
        durable.write_file(self.path / "config.toml", config_toml.encode())

    @staticmethod
    def check_free(path: Path) -> None:
        """Raises RunDirectoryError unless a new run can be made at `path`. Cheap: called before any model is loaded."""
        usable_path(path, "--out")
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise RunDirectoryError(f"{existing} is a file. Choose another --out.")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise RunDirectoryError(f"{existing} cannot be written to. Choose another --out, or mend its permissions.")
        if path.is_dir() and any(path.iterdir()):
            mend = f"Go on with it ({command('resume', path)}), or choose another --out."
            if not (path / "config.toml").is_file():
                mend = "It is not a run of oncurve. Choose another --out."
            raise RunDirectoryError(f"{path} exists and is not empty; nothing in it is overwritten. {mend}")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Hold an existing run. Raises RunDirectoryError when it is none, or another process holds it."""
        cls.check_run(path)
        return cls(path, _locked(path))

    @staticmethod
    def check_run(path: Path) -> None:
        """Raises RunDirectoryError unless `path` holds a run."""
        usable_path(path, "DIR")
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a folder. Name the --out of an earlier `oncurve train`.")
        if not (path / "config.toml").is_file():
            raise RunDirectoryError(f"{path} has no config.toml, so it is not a run of `oncurve train`.")

    def is_finished(self, steps: int) -> bool:
        """Whether all `steps` are done, and model and report are there: nothing is left to do."""
        newest = durable.newest_valid(self.checkpoints, "step-").path
        done = newest is not None and int(newest.name.removeprefix("step-")) >= steps
        return done and not durable.verify(self.path / "model") and (self.path / "report.html").is_file()

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def close(self) -> None:
        """Let go of the directory."""
        self._lock.close()


def _locked(path: Path) -> IO[str]:
    """The lock file, held exclusively until it is closed or the process ends, however it ends."""
    try:
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written to: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunDirectoryError(f"{path} is in use by another oncurve process. Wait for it, or stop it.") from error
    return lock


def describe_environment(device: str) -> dict[str, Any]:
    """What bit equality of a resumed run depends on, and what a reader of the run wants to know."""
    import torch
    import transformers

    from oncurve.run.arithmetic import digest_of_sample_results, library_settings, processor

    memory = None
    with contextlib.suppress(OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "oncurve": version("oncurve"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "library_settings": library_settings(),
        "sample_results": digest_of_sample_results() if device == "cpu" else None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory,
    }


def environment_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line for each difference that can make a resumed run leave the bits of the uninterrupted one.

    What an earlier version did not record is passed over.
    """
    return [
        f"{key} was {before[key]!r} and is {now.get(key)!r}"
        for key in EXACT_KEYS
        if key in before and before[key] != now.get(key)
    ]
