"""Directories that are written whole, verified by their manifest, found by number, and pruned safely."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from oncurve.durable.files import (
    LEFTOVER,
    own_folder,
    problem_with,
    require_space,
    sha256,
    size_in_bytes,
    storage_errors,
    sync_directory,
    temporary_beside,
    to_json,
    write_new,
)
from oncurve.durable.tensors import write_tensors

MANIFEST = "manifest.json"


class Newest(NamedTuple):
    """What `newest_valid` found: the directory (None: no valid one), and why newer ones were passed over."""

    path: Path | None
    skipped: dict[Path, list[str]]


def write_directory(path: Path, files: Mapping[str, bytes | Mapping[str, Tensor]]) -> None:
    """Write the directory `path` whole or not at all: each file, and a manifest of their sizes and sha256.

    `files` maps a relative name (may contain "/") to its bytes, or to tensors by name, which become safetensors
    (any device and dtype, non-contiguous and tied ones too; tied tensors are written once each). A directory that is
    already there is replaced: it is set aside, so a kill between the two renames leaves neither under this name.

    Raises StorageError when the disk refuses (nothing is left behind), ValueError for a name outside the directory.
    """
    for name in files:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or name == MANIFEST:
            raise ValueError(f"{name!r} cannot be the name of a file in a written directory")
    needed = sum(size_in_bytes(content) for content in files.values())
    temporary = temporary_beside(path)
    with storage_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, needed)
        try:
            _fill(temporary, files)
            _move_into_place(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def verify(path: Path, contents: bool = True, only: Collection[str] | None = None) -> list[str]:
    """What is wrong with a written directory, one line a problem; empty means every listed byte is as it was written.

    Files that the manifest does not list are ignored. `contents=False` compares sizes only: quick, but blind to
    flipped bytes. `only` names the files that are looked at.
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


def numbered(directory: Path, prefix: str = "step-") -> list[tuple[int, Path]]:
    """The directories `<prefix><number>` in `directory`, lowest number first; empty when it does not exist."""
    if not directory.is_dir():
        return []
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    matches = (
        (pattern.fullmatch(entry.name), entry)
        for entry in directory.iterdir()
        if entry.is_dir() and not entry.is_symlink()
    )
    return sorted((int(match[1]), entry) for match, entry in matches if match)


def newest_valid(
    directory: Path, prefix: str = "step-", beyond: Callable[[Path], list[str]] = lambda path: []
) -> Newest:
    """The directory `<prefix><number>` with the highest number that verifies, and the higher ones that do not.

    `beyond` says what is wrong with what one that verifies needs outside of it.
    """
    skipped: dict[Path, list[str]] = {}
    for _, path in reversed(numbered(directory, prefix)):
        problems = verify(path) or beyond(path)
        if not problems:
            return Newest(path, skipped)
        skipped[path] = problems
    return Newest(None, skipped)


def prune(directory: Path, prefix: str, keep: int) -> list[Path]:
    """Remove all but the newest `keep` intact directories, and what killed writers left behind; returns the removed.

    Only directories whose files have the right sizes count towards `keep`, so a damaged one never pushes a good one
    out; damaged ones newer than the oldest kept are left for inspection. Each is renamed before it is emptied: a kill
    in the middle leaves a leftover with a temporary name, never a checkpoint that is half there.

    Raises ValueError when `keep` is below 1, StorageError.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    removed = []
    kept = 0
    own_folder(directory)
    with storage_errors(directory, 0):
        for _, path in reversed(numbered(directory, prefix)):
            if kept < keep:
                kept += not verify(path, contents=False)
                continue
            aside = temporary_beside(path)
            path.rename(aside)
            removed.append(path)
        sweep(directory)
        if removed:
            sync_directory(directory)  # before anything goes that only they had named
    return removed


def sweep(directory: Path) -> None:
    """Remove the temporary files and directories that killed writers left in `directory`; none of another name.

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


def _fill(directory: Path, files: Mapping[str, bytes | Mapping[str, Tensor]]) -> None:
    directory.mkdir()
    mode = directory.stat().st_mode
    listed = {}
    for name, content in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            write_new(target, content)
            listed[name] = (len(content), hashlib.sha256(content).hexdigest())
        else:
            write_tensors(target, content, mode)
            listed[name] = (target.stat().st_size, sha256(target))
    write_new(directory / MANIFEST, _manifest_bytes(listed))
    for inner in [entry for entry in directory.rglob("*") if entry.is_dir()]:
        sync_directory(inner)
    sync_directory(directory)


def _move_into_place(temporary: Path, path: Path) -> None:
    aside = None
    if path.exists():
        aside = temporary_beside(path)
        path.rename(aside)
    os.rename(temporary, path)
    sync_directory(path.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _manifest_bytes(listed: Mapping[str, tuple[int, str]]) -> bytes:
    return to_json({"files": {name: {"sha256": digest, "size": size} for name, (size, digest) in listed.items()}})
