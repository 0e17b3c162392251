"""Locks that follow no link, and checks that no entry of a folder leads out of it."""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from oncurve.base.paths import kind_of_entry
from oncurve.base.posix import fcntl
from oncurve.durable.files import StorageError


class LockedError(StorageError):
    """Another process, or another run of this one, holds the lock."""


def hold(path: Path, mark: bytes) -> int:
    """Hold the lock file `path` until the descriptor that is returned is closed or the process ends, however it ends.

    A missing file is made, and an empty one gets `mark` as its content. A symbolic link, a folder, a pipe or a device
    under that name is refused and stays unchanged.
    Raises LockedError, StorageError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise StorageError(_no_lock(path)) from None
        raise StorageError(f"{path.parent} cannot be written to: {error.strerror}.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError(_no_lock(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{path.parent} is in use by another oncurve run. Wait for it, or stop it.") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be locked: {error.strerror}. Take a folder on a local disk.") from error
        if not os.fstat(descriptor).st_size:
            try:
                os.pwrite(descriptor, mark, 0)
            except OSError as error:
                raise StorageError(f"{path.parent} cannot be written to: {error.strerror}.") from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file `path`; it stays as it is. False for a missing one.

    A process that takes the lock within the microseconds of this call is refused.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether `path` is still the file that is open: it and its folders were not deleted, moved or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _no_lock(path: Path) -> str:
    kind = kind_of_entry(path.lstat().st_mode)
    return f"{path} is {kind} and not a run's own lock file. Remove it; nothing was written to it."


def foreign(folder: Path, files: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Return a line for each entry of `folder`, or of one of its `folders`, of a wrong kind.

    `files` must be regular files and `folders` real folders, where they exist; other entries may be anything but a
    symbolic link. So no write or removal by these names happens in another place.
    """
    wrong = []
    for name, wanted, is_kind in (
        *((name, "a file", stat.S_ISREG) for name in files),
        *((name, "a folder", stat.S_ISDIR) for name in folders),
    ):
        entry = folder / name
        try:
            mode = entry.lstat().st_mode
        except OSError:
            continue
        if not is_kind(mode):
            wrong.append(f"{entry} is {kind_of_entry(mode)}, where a run has {wanted} of its own")
        elif stat.S_ISDIR(mode):
            with os.scandir(entry) as inner:  # a long run has many: a stat of each would take seconds
                wrong += sorted(f"{each.path} is a symbolic link" for each in inner if each.is_symlink())
    return wrong
