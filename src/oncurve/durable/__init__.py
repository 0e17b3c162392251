"""Every byte that must survive goes through here: whole directories, single files, append-only logs, frozen parts.

The rule is the same everywhere: write under a temporary name beside the target, fsync the file, rename it into place,
fsync the directory. A reader therefore sees the old state or the new one, whole, whenever the writer is killed.
A directory carries `manifest.json` with the size and sha256 of each file, so that "the latest checkpoint" is derived
(the newest that verifies) and no pointer file exists that could be wrong.

What is covered: kill -9 at any instant, power loss on a disk that honours fsync, flipped bytes, truncated and missing
files, a full disk. What is not: two processes writing the same target, and a disk that lies about fsync.
"""

from __future__ import annotations

from oncurve.durable.directory import MANIFEST, Newest, newest_valid, numbered, prune, sweep, verify, write_directory
from oncurve.durable.files import (
    LEFTOVER,
    StorageError,
    discard,
    fetch,
    own_folder,
    problem_with_stored,
    read_json,
    read_tensors,
    store,
    sync_files,
    to_json,
    write_file,
)
from oncurve.durable.guard import LockedError, foreign, hold
from oncurve.durable.log import AppendLog, read_log
from oncurve.durable.tensors import LazyTensors

__all__ = [
    "LEFTOVER",
    "MANIFEST",
    "AppendLog",
    "LazyTensors",
    "LockedError",
    "Newest",
    "StorageError",
    "discard",
    "fetch",
    "foreign",
    "hold",
    "newest_valid",
    "numbered",
    "own_folder",
    "problem_with_stored",
    "prune",
    "read_json",
    "read_log",
    "read_tensors",
    "store",
    "sweep",
    "sync_files",
    "to_json",
    "verify",
    "write_directory",
    "write_file",
]
