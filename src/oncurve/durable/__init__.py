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
        MANIFEST as MANIFEST,
        new_directory as new_directory,
        newest_valid as newest_valid,
        numbered as numbered,
        prune as prune,
        sweep as sweep,
        sweep_dead as sweep_dead,
        verify as verify,
        write_directory as write_directory,
    )
    from oncurve.durable.files import (
        LEFTOVER as LEFTOVER,
        DiskError as DiskError,
        StorageError as StorageError,
        discard as discard,
        fetch as fetch,
        own_folder as own_folder,
        problem_with_stored as problem_with_stored,
        read_json as read_json,
        read_tensors as read_tensors,
        save_tensors as save_tensors,
        sha256 as sha256,
        storage_errors as storage_errors,
        store as store,
        stored_names as stored_names,
        sync_files as sync_files,
        temporary_name as temporary_name,
        to_json as to_json,
        write_file as write_file,
    )
    from oncurve.durable.guard import (
        LockedError as LockedError,
        foreign as foreign,
        hold as hold,
        is_at as is_at,
        is_held as is_held,
    )
    from oncurve.durable.log import AppendLog as AppendLog, read_log as read_log
    from oncurve.durable.tensors import LazyTensors as LazyTensors, digest as digest

__getattr__, __all__ = lazily(__name__)
