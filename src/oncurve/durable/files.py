"""Single files: atomic writes, reads that check, frozen tensors by hash, and the disk's errors in plain words."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import SafetensorError

from oncurve.base.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = ".tmp-"
LEFTOVER = re.compile(r"\.tmp-(?P<target>.+)-(?P<pid>\d+)-[0-9a-f]{8}|\.saving-[a-z0-9_]{8}")
"""The temporary names of `temporary_name`, and of the folder of `oncurve.models.save`."""
_STORED = re.compile(rb"(?<![\w.-])[0-9a-f]{64}\.safetensors(?![\w.-])")


class StorageError(UserError):
    """The disk refused (full, read-only, no permission, I/O error). What was there before is intact."""

    def renamed(self, was: str, now: str) -> Self:
        """Return the same error with another name for a path in it: users read the one that they gave."""
        return type(self)(*(part.replace(was, now) for part in self.args))


class DiskError(StorageError):
    """The disk refused, and may take the same bytes later: it is full, over quota, or had an I/O error.

    reason   what was refused and why, without advice
    advice   what to do about it
    """

    exit_code = 1

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason, advice)
        self.reason, self.advice = reason, advice

    def __str__(self) -> str:
        return f"{self.reason}; {self.advice} and resume. What was written before is intact."


def to_json(value: Any) -> bytes:
    """Return `value` as JSON with sorted keys and a final newline: the same value gives the same bytes.

    Half a character, a surrogate alone, is JSON's escape for it. Raises ValueError for NaN and inf (non-finite values
    are never stored), TypeError for what JSON cannot hold.
    """
    text = json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def write_file(path: Path, content: bytes, sync: bool = True) -> None:
    """Replace `path` by `content`, whole or not at all. Raises StorageError; an earlier file then stays as it was.

    Without `sync` this holds when the process is killed, and after a power loss only once `sync_files` has been called:
    for files that are written often and needed only from a checkpoint on.
    """
    temporary = temporary_name(path)
    with storage_errors(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_new(temporary, content, sync)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if sync:
            sync_directory(path.parent)


def sync_files(paths: Collection[Path]) -> None:
    """Wait until files that were written without `sync`, and their names, are on the disk. Raises StorageError.

    A file that has been removed since is skipped.
    """
    for path in paths:
        with storage_errors(path, 0), suppress(FileNotFoundError), open(path, "rb") as file:
            os.fsync(file.fileno())
    for folder in {path.parent for path in paths}:
        with storage_errors(folder, 0), suppress(FileNotFoundError):
            sync_directory(folder)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises CheckpointError, naming the file."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU, by name. Never unpickles. Raises CheckpointError."""
    from safetensors.torch import load_file  # here: it imports torch, which readers of logs do without

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file into a folder that becomes valid as a whole (`new_directory`). Raises StorageError."""
    from oncurve.durable.tensors import write_tensors

    needed = size_in_bytes(tensors)
    with storage_errors(path, needed):
        require_space(path.parent, needed)
        write_tensors(path, tensors, path.parent.stat().st_mode)


def store(directory: Path, tensors: Mapping[str, Tensor]) -> str:
    """Store frozen tensors (a reference, a base model) once, under the hash of their bytes; returns the file's name.

    The same tensors give the same name, and a whole file of that name is unchanged. Hashing writes a temporary copy, so
    this is called once for the same tensors. Raises StorageError.
    """
    from oncurve.durable.tensors import write_tensors

    temporary = temporary_name(directory / "frozen")
    needed = size_in_bytes(tensors)
    with storage_errors(directory, needed):
        directory.mkdir(parents=True, exist_ok=True)
        require_space(directory, needed)
        try:
            write_tensors(temporary, tensors, directory.stat().st_mode)
            size, digest = temporary.stat().st_size, sha256(temporary)
            name = f"{digest}.safetensors"
            if problem_with(directory / name, size, digest):
                os.replace(temporary, directory / name)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(directory)
    return name


def fetch(directory: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors that `store` kept under `name`. Raises CheckpointError when the file is missing or damaged."""
    problem = problem_with_stored(directory, name)
    if problem:
        raise CheckpointError(f"{problem}; a checkpoint needs it and it cannot be rebuilt from the others")
    return read_tensors(directory / name)


def problem_with_stored(directory: Path, name: str) -> str | None:
    """Return what is wrong with the tensors that `store` kept under `name`, or None."""
    problem = problem_with(directory / name, None, name.removesuffix(".safetensors"))
    return f"{directory / name} {problem}" if problem else None


def stored_names(record: bytes) -> set[str]:
    """Return the names of `store` that occur in a record."""
    return {name.decode() for name in _STORED.findall(record)}


def discard(directory: Path, records: Iterable[bytes]) -> list[Path]:
    """Remove the files of `store` that none of these records names, and the leftovers of killed writers.

    Returns the former. It is called when all valid records are on the disk, and others are removed. Raises
    StorageError.
    """
    named = {name for record in records for name in stored_names(record)}
    removed = []
    own_folder(directory)
    with storage_errors(directory, 0):
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            leftover = LEFTOVER.fullmatch(path.name) is not None
            stored = path.name in stored_names(os.fsencode(path.name))
            if leftover or (stored and path.name not in named):
                path.unlink(missing_ok=True)
                removed += [] if leftover else [path]
    return removed


def own_folder(path: Path) -> Path:
    """Return `path`, a folder or a free name. Raises StorageError for a link, through which other folders would
    change.
    """
    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link; nothing is removed through it. Put the folder itself there.")
    return path


def temporary_name(path: Path) -> Path:
    """Return a new temporary name in the folder of `path`; `sweep` recognizes it as a leftover."""
    return path.parent / f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"


def write_new(path: Path, content: bytes, sync: bool = True) -> None:
    """Create `path` with `content` and, with `sync`, wait for the disk. Raises OSError."""
    with open(path, "xb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem_with(path: Path, size: int | None, digest: str | None) -> str | None:
    """Return what is wrong with a file that should have this size and sha256 (None: not checked), or None."""
    try:
        actual = path.stat().st_size
        if size is not None and actual != size:
            return f"has {actual} bytes instead of {size}"
        if digest is not None and sha256(path) != digest:
            return "has been changed: its sha256 does not fit"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def size_in_bytes(content: bytes | Mapping[str, Tensor]) -> int:
    """Return the bytes of the content on the disk, without headers."""
    if isinstance(content, bytes):
        return len(content)
    return sum(tensor.numel() * tensor.element_size() for tensor in content.values())


def require_space(directory: Path, needed: int) -> None:
    """Raises OSError (ENOSPC) before a single byte is written, when `needed` bytes cannot fit."""
    if shutil.disk_usage(directory).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def storage_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn OSError, also inside an error of safetensors or tokenizers, into a StorageError with the path and the space
    needed.

    Of a disk that is full, over quota, or has an I/O error it is a DiskError.
    """
    try:
        yield
    except Exception as error:
        match = re.search(r"os error (\d+)", str(error))
        wrapped = isinstance(error, SafetensorError) or (type(error) is Exception and match is not None)
        if not (isinstance(error, OSError) or wrapped):
            raise
        code = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        message = f"{path} cannot be written: {os.strerror(code) if code else error}"
        if code == errno.EFBIG:
            message += f" ({needed / 1e6:,.1f} MB); raise the limit on the size of files (ulimit -f) and resume"
        if code in (errno.ENOSPC, errno.EDQUOT):
            existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
            free = shutil.disk_usage(existing).free
            message += f" ({needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
            raise DiskError(message, "free some space") from error
        if code == errno.EIO:
            raise DiskError(message, "see what is wrong with the disk") from error
        raise StorageError(f"{message}. What was written before is intact.") from error
