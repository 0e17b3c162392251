"""Directories that are written whole, verified by their manifest, found by number, and pruned."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncurve.durable.files import (
    LEFTOVER,
    StorageError,
    own_folder,
    problem_with,
    require_space,
    sha256,
    size_in_bytes,
    storage_errors,
    sync_directory,
    sync_files,
    temporary_name,
    to_json,
    write_new,
)

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d+)")


class Newest(NamedTuple):
    """The newest valid directory (None: there is none), and the problems of newer ones."""

    path: Path | None
    skipped: dict[Path, list[str]]


def write_directory(path: Path, files: Mapping[str, bytes | Mapping[str, Tensor]]) -> None:
    """Write the directory `path` whole or not at all: each file, and a manifest of their sizes and sha256.

    `files` maps a relative name (may contain "/") to its bytes, or to tensors by name, which become safetensors
    (any device and dtype, non-contiguous and tied ones too; tied tensors are written once each). An existing directory
    is replaced: it is renamed first, so after a kill between the two renames neither has this name.

    Raises StorageError for an error of the disk (nothing remains), ValueError for a name outside the directory.
    """
    for name in files:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or name == MANIFEST:
            raise ValueError(f"{name!r} cannot be the name of a file in a written directory")
    needed = sum(size_in_bytes(content) for content in files.values())
    with storage_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, needed)
    with new_directory(path) as folder, storage_errors(path, needed):
        mode = folder.stat().st_mode
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                write_new(target, content)
            else:
                from oncurve.durable.tensors import write_tensors  # here: it imports torch

                write_tensors(target, content, mode)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Return a temporary folder next to `path`; when the block ends it becomes `path`, with a manifest of all files in
    it.

    The block writes files into the folder by any means. A directory that is already at `path` is replaced as by
    `write_directory`. If the block raises, nothing is left. Raises StorageError when the disk refuses.
    """
    temporary = temporary_name(path)
    try:
        with storage_errors(path, 0):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            yield temporary
            _seal(temporary)
            _move_into_place(temporary, path)
    except StorageError as error:
        raise error.renamed(temporary.name, path.name) from error.__cause__
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def verify(path: Path, contents: bool = True, only: Collection[str] | None = None) -> list[str]:
    """Return the problems of a written directory, one line each; empty: every listed byte is as it was written.

    Files that the manifest does not list are ignored. `contents=False` compares sizes only, which is quick but misses
    flipped bytes. `only` names the files to check.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        listed = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except OSError as error:
        return [f"{MANIFEST} cannot be read: {error.strerror}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{MANIFEST} is damaged"]
    if raw != _manifest_bytes(listed):  # a flipped byte between the values would pass json.loads
        return [f"{MANIFEST} is damaged"]
    problems = []
    for name, (size, digest) in listed.items():
        if only is not None and name not in only:
            continue
        problem = problem_with(path / name, size, digest if contents else None)
        if problem:
            problems.append(f"{name} {problem}")
    return problems


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """Return the directories `step-<number>` in `directory`, lowest number first; empty when it does not exist."""
    entries = directory.iterdir() if directory.is_dir() else ()
    named = ((_STEP.fullmatch(entry.name), entry) for entry in entries if entry.is_dir() and not entry.is_symlink())
    return sorted((int(match[1]), entry) for match, entry in named if match)


def newest_valid(directory: Path, beyond: Callable[[Path], list[str]] = lambda path: []) -> Newest:
    """Return the directory `step-<number>` with the highest number that verifies, and the higher ones that do not.

    `beyond` gives the problems of files outside it that a directory needs.
    """
    skipped: dict[Path, list[str]] = {}
    for _, path in reversed(numbered(directory)):
        problems = verify(path) or beyond(path)
        if not problems:
            return Newest(path, skipped)
        skipped[path] = problems
    return Newest(None, skipped)


def prune(directory: Path, keep: int, spare: Collection[int] = ()) -> list[Path]:
    """Remove all but the newest `keep` intact directories, and leftovers of killed writers; returns the removed.

    The numbers in `spare` stay, and do not count towards `keep` unless they are among the newest.

    Only directories whose files have the right sizes count towards `keep`, so a damaged one never displaces a good one;
    damaged ones newer than the oldest kept stay for inspection. Each is renamed before it is emptied: after a kill a
    leftover with a temporary name remains, never half a checkpoint.

    Raises ValueError when `keep` is below 1, StorageError.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    removed = []
    kept = 0
    own_folder(directory)
    with storage_errors(directory, 0):
        for number, path in reversed(numbered(directory)):
            if kept < keep:
                kept += not verify(path, contents=False)
                continue
            if number in spare:
                continue
            aside = temporary_name(path)
            path.rename(aside)
            removed.append(path)
        sweep(directory)
        if removed:
            sync_directory(directory)  # before files are removed that only they named
    return removed


def sweep(directory: Path) -> None:
    """Remove the temporary files and directories of killed writers in `directory`, by their names.

    Raises StorageError where `directory` is a symbolic link.
    """
    if not own_folder(directory).is_dir():
        return
    for entry in directory.iterdir():
        if LEFTOVER.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def sweep_dead(path: Path, all_targets: bool) -> None:
    """Remove temporary names next to `path` that a dead process of this machine left: for `path`, or for any target."""
    for entry in path.parent.iterdir():
        found = LEFTOVER.fullmatch(entry.name)
        if found is not None and found["pid"] and (all_targets or found["target"] == path.name):
            with suppress(PermissionError):  # a process of another user
                try:
                    os.kill(int(found["pid"]), 0)
                except ProcessLookupError:
                    shutil.rmtree(entry, ignore_errors=True)


def _seal(directory: Path) -> None:
    """Write the manifest of all files in the directory, and wait until everything is on the disk."""
    files = sorted(entry for entry in directory.rglob("*") if entry.is_file())
    listed = {file.relative_to(directory).as_posix(): (file.stat().st_size, sha256(file)) for file in files}
    write_new(directory / MANIFEST, _manifest_bytes(listed))
    sync_files([*files, directory / MANIFEST])


def _move_into_place(temporary: Path, path: Path) -> None:
    aside = None
    if path.exists():
        aside = temporary_name(path)
        path.rename(aside)
    os.rename(temporary, path)
    sync_directory(path.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _manifest_bytes(listed: Mapping[str, tuple[int, str]]) -> bytes:
    return to_json({"files": {name: {"sha256": digest, "size": size} for name, (size, digest) in listed.items()}})
