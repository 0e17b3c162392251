"""Storage that survives a crash: whole directories, single files, append-only logs, frozen tensors.

The rule is the same everywhere: write under a temporary name next to the target, fsync the file, rename it into place,
fsync the directory. So a reader sees the whole old state or the whole new one, whenever the writer is killed. A
directory has a `manifest.json` with the size and sha256 of each file. The latest checkpoint is the newest directory
that verifies; no pointer file exists that could be wrong.

Covered: kill -9 at any instant, power loss on a disk that honours fsync, flipped bytes, truncated and missing files, a
full disk, which is a `DiskError` until there is space again. Not covered: two processes that write the same target, and
a disk that ignores fsync.

Loaded lazily: tensors alone need torch, which readers of logs and reward workers do without.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.durable.directory import (
        MANIFEST,
        new_directory,
        newest_valid,
        numbered,
        prune,
        sweep,
        sweep_dead,
        verify,
        write_directory,
    )
    from oncurve.durable.files import (
        LEFTOVER,
        DiskError,
        StorageError,
        discard,
        fetch,
        own_folder,
        problem_with_stored,
        read_json,
        read_tensors,
        save_tensors,
        sha256,
        storage_errors,
        store,
        stored_names,
        sync_files,
        temporary_name,
        to_json,
        write_file,
    )
    from oncurve.durable.guard import LockedError, foreign, hold, is_at, is_held
    from oncurve.durable.log import AppendLog, read_log
    from oncurve.durable.tensors import LazyTensors, digest

__getattr__, __all__ = lazily(__name__)
