"""The run directory: made once, never overwritten, and used by one run at a time, which writes nowhere else.

config.toml        the resolved configuration             environment.json   software and machine at the start
metrics.jsonl      one line a step                        rollouts/          every group of every step
checkpoints/       for a resume                           model/             the policy in Hugging Face form
model/adapter/     the adapter alone in PEFT's form, where one was trained
report.html        the run on one page                    incidents/         batches of skipped updates
evaluations/       held-out problems, by evaluation
tensorboard/  wandb/   what these trackers write
replay.jsonl       the reward model's examples from iterations    reward_model/      after the last iteration
replies/           the answers of a `model_judge`; eval_replies/: to `oncurve eval`
run.json           the run's id, settings and files    data.jsonl, eval_data.jsonl   rows that were given in memory
                                                           sft_data.jsonl: demonstrations
sft/               the warm start: a run directory of its own, whose model step 1 begins with
history/           config-000120.toml, the settings until step 120, where a resume changed them
model-000100/      the model after 100 steps, of a run that went on after its end

`config.toml` is written last: a folder without it holds the beginning of a killed run, which `create` replaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, StrictInt, ValidationError

from oncurve import durable
from oncurve.base.closing import Closing
from oncurve.base.errors import LostFileError, RunDirectoryError, command
from oncurve.base.paths import usable_path
from oncurve.config import SIGNATURES, signatures

FOR_THE_READER = {"oncurve", "python", "platform", "cores", "memory_bytes", "device_memory_bytes"}
"""What `environment.json` has that decides no bit of a run."""

LOCK, CONFIG, ENVIRONMENT, IDENTITY, ROWS = ".lock", "config.toml", "environment.json", "run.json", "data.jsonl"
SFT, SFT_ROWS = "sft", "sft_data.jsonl"
REPLIES, EVAL_REPLIES = "replies", "eval_replies"
MARK = b"oncurve run\n"
BEGINNING = (ENVIRONMENT, IDENTITY, ROWS, f"eval_{ROWS}", SFT_ROWS, f"eval_{SFT_ROWS}")
FILES = (CONFIG, *BEGINNING, "metrics.jsonl", "replay.jsonl", "report.html")
HISTORY, PRODUCTS = "history", ("model", "reward_model")
SWEPT = ("checkpoints", "checkpoints/frozen", "rollouts", "evaluations", "incidents")
FOLDERS = (*SWEPT, HISTORY, REPLIES, EVAL_REPLIES, "model/adapter", *PRODUCTS, SFT, "tensorboard")
"""Folders that a run writes into, but wandb/: wandb makes links in it, and oncurve only reads there."""


@contextlib.contextmanager
def if_it_fails(*closes: Callable[[], object]) -> Iterator[None]:
    """Return a context that calls `closes` in their order where its block ends by an error."""
    try:
        yield
    except BaseException:
        for close in closes:
            close()
        raise


class RunDirectory(Closing):
    """A run's folder, which is locked while this object is open, so that a second run is refused."""

    def __init__(self, path: Path, lock: int, made: bool = False) -> None:
        self.path = path
        self._lock: int | None = lock
        self._made = made

    @classmethod
    def create(cls, path: Path, environment: Mapping[str, Any]) -> RunDirectory:
        """Make a new run at `path`: a free name, an empty folder, or the beginning of a killed run.

        Raises RunDirectoryError for anything else there: nothing of an earlier run is ever overwritten.
        """
        cls._check_place(path)
        made = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be made: {error.strerror}. Choose another --out.") from error
        try:
            lock = _locked(path)
        except RunDirectoryError as error:
            if made and not isinstance(error.__cause__, durable.LockedError):  # such as a full disk: leave nothing
                with contextlib.suppress(OSError):
                    (path / LOCK).unlink(missing_ok=True)
                    path.rmdir()
            raise
        run = cls(path, lock, made)
        with run.beginning():
            cls._check_place(path)  # another process may have begun here in the meantime
            run._forget_beginning()
            durable.write_file(path / ENVIRONMENT, durable.to_json(environment))
        return run

    def keep_config(self, config_toml: str) -> None:
        """Write `config.toml`, the last file of a run's beginning: a folder without it is no run."""
        durable.write_file(self.path / CONFIG, config_toml.encode())

    def beginning(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the run begins; what fails inside leaves nothing of it."""
        return if_it_fails(self.abandon)

    def abandon(self) -> None:
        """Remove the files that `create` made, and close: the run did not begin."""
        with contextlib.suppress(OSError):
            if not (self.path / CONFIG).exists():
                self._forget_beginning()
                (self.path / LOCK).unlink(missing_ok=True)
                if self._made:
                    self.path.rmdir()
        self.close()

    def _forget_beginning(self) -> None:
        for name in BEGINNING:
            (self.path / name).unlink(missing_ok=True)
        durable.sweep(self.path.resolve())

    @staticmethod
    def check_free(path: Path, go_on: str | None = None) -> None:
        """Raise RunDirectoryError unless a new run can be made at `path`. Cheap: called before any model is loaded.

        `go_on` continues a run that is there; None: the command `oncurve resume`.
        """
        if durable.is_held(usable_path(path, "--out") / LOCK):
            raise RunDirectoryError(f"{path} is in use by another oncurve run. Wait for it, or choose another --out.")
        RunDirectory._check_place(path, go_on)

    @staticmethod
    def _check_place(path: Path, go_on: str | None = None) -> None:
        usable_path(path, "--out")
        above = (path, *path.absolute().parents)
        existing = next(folder for folder in above if folder.exists() or folder.is_symlink())
        if not existing.exists():
            raise RunDirectoryError(f"{existing} is a symbolic link that leads nowhere. Choose another --out.")
        if not existing.is_dir():
            raise RunDirectoryError(f"{existing} is a file. Choose another --out.")
        if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise RunDirectoryError(f"{existing} cannot be written to. Choose another --out, or change its mode.")
        if path.is_dir() and any(path.iterdir()) and not _is_beginning(path):
            fix = f"Continue it ({go_on or command('resume', path)}), or choose another {'out' if go_on else '--out'}."
            if not (path / CONFIG).is_file():
                fix = "It is not a run of oncurve. Choose another --out."
            raise RunDirectoryError(f"{path} exists and is not empty; nothing in it is overwritten. {fix}")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run, and remove leftovers of killed writers.

        Raises RunDirectoryError: it is no run, another run uses it, or one of its entries leads out of it.
        """
        cls.check_run(path)
        run = cls(path, _locked(path))
        with if_it_fails(run.close):
            wrong = durable.foreign(path, FILES, FOLDERS)
            if wrong:
                fix = f"put the real files and folders into {path}, or let {path} itself be the link"
                lines = (*wrong, f"A run writes and removes only its own files: {fix}. Nothing was changed.")
                raise RunDirectoryError("\n".join(lines))
            for folder in (path.resolve(), *(path / name for name in SWEPT)):
                durable.sweep(folder)
            written = _object(path / IDENTITY) or {}
            if "after" in written and (known := run.identity()) is not None:  # a change is complete, or was never made
                content = {**known, SIGNATURES: written.get(SIGNATURES, [])}
                durable.write_file(path / IDENTITY, durable.to_json(content))
        return run

    @staticmethod
    def check_run(path: Path) -> None:
        """Raises RunDirectoryError unless `path` holds a run."""
        usable_path(path, "DIR")
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a folder. Name the --out of an earlier `oncurve train`.")
        if not (path / CONFIG).is_file():
            if _is_beginning(path):
                again = f"Start it again with the same command: `oncurve train` takes --out {path}."
                raise RunDirectoryError(f"{path} holds a run that was killed before its first step. {again}")
            raise RunDirectoryError(f"{path} has no config.toml, so it is not a run of `oncurve train`.")

    def is_finished(self, steps: int, patience: int, models: Sequence[str]) -> bool:
        """Return whether all `steps` are done, or `patience` ended the run early, and `models` and report are
        written.
        """
        newest = durable.newest_valid(self.checkpoints).path
        if newest is None:
            return False
        state = (_object(newest / "state.json") or {}).get("trainer", {})
        done = int(newest.name.removeprefix("step-")) >= steps or 0 < patience <= state.get("since_best", 0)
        written = not any(durable.verify(self.path / name) for name in models)
        return done and written and (self.path / "report.html").is_file()

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def keep_identity(self, identity: Mapping[str, Any], *to_come: str) -> dict[str, Any]:
        """Write `run.json`, with signatures of what `config.toml` brings, as it is and as it is `to_come`."""
        file = self.path / CONFIG
        configs = [*([file.read_bytes()] if file.is_file() else []), *(text.encode() for text in to_come)]
        signed = signatures(str(identity["id"]), file.parent.absolute(), *configs)
        written = {**identity, SIGNATURES: signed}
        durable.write_file(self.path / IDENTITY, durable.to_json(written))
        return written

    def sign(self, identity: dict[str, Any]) -> None:
        """Sign what a run brings that this user resumes, so that it is asked about once, in its `identity` too."""
        identity[SIGNATURES] = self.keep_identity(self.identity() or identity)[SIGNATURES]

    def identity(self) -> dict[str, Any] | None:
        """Return the identity in `run.json` that `config.toml` belongs to; None where it is missing or damaged."""
        found = _object(self.path / IDENTITY) or {}
        if found.get("after") == durable.sha256(self.path / CONFIG):
            found = found.get("before", {})  # a change was killed before it wrote the other settings
        return {key: found[key] for key in ("id", "settings", "files")} if is_identity(found) else None

    def note(self, step: int, changes: Sequence[str]) -> None:
        """Add to `environment.json`, also to a damaged one, that the run continued after `step` with these changes."""
        known = _object(self.path / ENVIRONMENT) or {}
        earlier = known.get("changed", [])
        noted = [*(earlier if isinstance(earlier, list) else []), {"after_step": step, "what": list(changes)}]
        durable.write_file(self.path / ENVIRONMENT, durable.to_json({**known, "changed": noted}))

    def change(self, step: int, config_toml: str, identity: Mapping[str, Any], changes: Sequence[str]) -> None:
        """Continue after `step` with other settings: the earlier ones stay in `history/`, the changes are noted."""
        earlier = (self.path / CONFIG).read_bytes()
        kept = self.path / HISTORY / f"config-{step:06d}.toml"
        if not kept.exists() or kept.read_bytes() != earlier:
            durable.write_file(_free(kept), earlier)
        self.note(step, changes)
        after = durable.sha256(self.path / CONFIG)
        self.keep_identity({**identity, "after": after, "before": self.identity()}, config_toml)
        self.keep_config(config_toml)  # the change itself, before which `identity` returns the earlier one
        self.keep_identity(identity)

    def check_kept(self) -> None:
        """Raises LostFileError: the directory was deleted, moved or replaced since it was opened."""
        if self._lock is not None and not durable.is_at(self._lock, self.path / LOCK):
            raise LostFileError(self.path / LOCK, "it was opened")

    def set_products_aside(self, step: int) -> None:
        """Rename `model/` and `reward_model/` of a run that goes on after its end: nothing of it is overwritten."""
        for name in PRODUCTS:
            if (self.path / name).is_dir():
                (self.path / name).rename(_free(self.path / f"{name}-{step:06d}"))

    def close(self) -> None:
        """Release the lock. Twice is allowed."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _free(path: Path) -> Path:
    """Return the first of `name.toml`, `name-2.toml` and so on that does not exist."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


def _is_beginning(path: Path) -> bool:
    """Return whether a folder holds only what `create` writes before `config.toml`: its run was killed, or is
    starting.
    """
    entries = {entry.name: entry for entry in path.iterdir()}
    lock = entries.pop(LOCK, None)
    if lock is None or lock.is_symlink() or not lock.is_file():
        return False
    marked = lock.stat().st_size == len(MARK) and lock.read_bytes() == MARK
    known = BEGINNING if marked else (ENVIRONMENT,)  # the mark is the first thing that is written
    return all(
        (name in known or (marked and durable.LEFTOVER.fullmatch(name) is not None))
        and entry.is_file()
        and not entry.is_symlink()
        for name, entry in entries.items()
    )


class _Files(BaseModel):
    path: str
    parts: dict[str, tuple[StrictInt, str | None]]


class _Identity(BaseModel):
    id: str
    settings: dict[str, Any]
    files: dict[str, _Files]


def is_identity(found: Any) -> bool:
    """Return whether a value has the form of what `oncurve.run.directory.identity.identify` returns."""
    try:
        _Identity.model_validate(found)
    except ValidationError:
        return False
    return True


def _object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _locked(path: Path) -> int:
    """Return the lock, held until the descriptor is closed or the process ends. Raises RunDirectoryError."""
    try:
        return durable.hold(path / LOCK, MARK)
    except durable.StorageError as error:
        raise RunDirectoryError(str(error)) from error


def describe_environment(device: str) -> dict[str, Any]:
    """Software and machine: the conditions for bit equality of a resumed run, and others for the reader."""
    import psutil
    import torch
    import transformers

    from oncurve.machine.fingerprint import digest_of_sample_results, gpu_versions, library_settings, processor

    return {
        "oncurve": version("oncurve"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        **gpu_versions(device),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "library_settings": library_settings(),
        "sample_results": digest_of_sample_results() if device == "cpu" else None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        **({"device_memory_bytes": torch.cuda.mem_get_info()[1]} if device == "cuda" else {}),
    }


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line for each difference that can make a resumed run leave the bits of the uninterrupted one.

    Keys that an earlier version did not record are skipped.
    """
    return [
        f"{key} was {before[key]!r} and is {now[key]!r}"
        for key in sorted(now)
        if key not in FOR_THE_READER and key in before and before[key] != now[key]
    ]
