"""Append-only logs of JSON lines, whose length is part of a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import CheckpointError, LostFileError
from oncurve.durable.files import DiskError, StorageError, storage_errors, sync_directory, write_file
from oncurve.durable.guard import is_at

_CHUNK_BYTES = 1 << 20
_LONGEST_TAIL = 1 << 20


class AppendLog(Closing):
    """An append-only file of JSON lines whose length is part of a checkpoint.

    With `offset` the constructor truncates the file to that many bytes, which removes the lines of a killed step. A
    shorter file has lost data: CheckpointError. Without an offset writing continues at the end, after a torn last line
    has been removed.

    Lines stay in memory until they are known to be on the disk, at most 1 MiB while it takes them. Those that a full
    disk refuses wait there, and the next call writes them, so the file has every line, in order, at any time up to one
    of them. A line that the disk refuses for another reason is removed again: StorageError.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self.path = path
        self.refused: DiskError | None = None
        self._tail, self._written, self._newest = bytearray(), 0, "it was opened"
        with storage_errors(path, 0):
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            if not is_new and path.lstat().st_nlink > 1:  # a hard link: a file of another place would change
                write_file(path, path.read_bytes())
            flags = (
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            )  # through a link another file would be truncated
            self._descriptor = os.open(path, flags, 0o666)
            if is_new:
                sync_directory(path.parent)
            size = os.fstat(self._descriptor).st_size
            if offset is not None and size < offset:
                os.close(self._descriptor)
                raise CheckpointError(f"{path} has {size} bytes, but {offset} were written before the checkpoint")
            self._start = _end_of_last_line(self._descriptor, size) if offset is None else offset
            os.ftruncate(self._descriptor, self._start)

    @classmethod
    def reopened(cls, path: Path, offset: int) -> tuple[AppendLog, list[str]]:
        """Return the log truncated to `offset`, and warnings; where it has lost lines, only these are lost."""
        try:
            return cls(path, offset), []
        except CheckpointError as error:
            return cls(path), [f"{error}: the lines in between are lost, and the run goes on without them"]

    @property
    def offset(self) -> int:
        """The bytes of all lines, those that wait included; a checkpoint stores it (after `sync`)."""
        return self._start + len(self._tail)

    def append(self, record: Mapping[str, Any]) -> int:
        """Write one line (keys sorted) to the operating system; returns the new offset.

        The line survives a kill of this process at once, and a power loss after `sync`. Where the disk is full, it
        waits: `refused` is the reason then, else None.
        Raises ValueError for NaN and inf, StorageError for an error that does not pass, LostFileError.
        """
        self.check()
        line = json.dumps(record, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))
        data = (line + "\n").encode("utf-8", "backslashreplace")  # half a character: JSON's own escape, read back whole
        self._tail += data
        try:
            self._write()
            if len(self._tail) > _LONGEST_TAIL:
                self.sync()
        except DiskError:
            pass
        except StorageError:
            del self._tail[-len(data) :]
            self._written = min(self._written, len(self._tail))
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._start + self._written)
            raise
        if "step" in record:
            self._newest = f"step {int(record['step'])} was written"
        return self.offset

    def check(self) -> None:
        """Raises LostFileError: the file at `path` is another one, or none."""
        if not is_at(self._descriptor, self.path):
            raise LostFileError(self.path, self._newest)

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises StorageError; DiskError: the lines wait."""
        self._write()
        with self._noted(0):
            try:
                os.fsync(self._descriptor)
            except OSError:
                self._written = 0  # what the system had taken may be lost
                raise
        self._start, self._written = self.offset, 0
        self._tail.clear()

    def close(self) -> None:
        """Sync and close, also where the former fails. Closing twice is allowed. Raises StorageError."""
        if self._descriptor >= 0:
            try:
                self.sync()
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self) -> None:
        """Give the operating system the lines that it does not have; of those that it refuses none is there in part."""
        with self._noted(len(self._tail) - self._written):
            try:
                while self._written < len(self._tail):
                    data = bytes(self._tail[self._written :])
                    self._written += os.pwrite(self._descriptor, data, self._start + self._written)
            except OSError:
                self._written = self._tail.rfind(b"\n", 0, self._written) + 1
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._start + self._written)
                raise

    @contextmanager
    def _noted(self, needed: int) -> Iterator[None]:
        try:
            with storage_errors(self.path, needed):
                yield
            self.refused = None
        except DiskError as error:
            self.refused = error
            raise


def read_log(path: Path, damaged: bool = False) -> list[dict[str, Any]]:
    """Return the records of an append log.

    A torn last line is left out. Raises CheckpointError, naming file and line; with `damaged` such a line is left out.
    """
    records = []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    lines = content.split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("expected an object")
        except (ValueError, RecursionError) as error:
            if not damaged:
                raise CheckpointError(f"{path}, line {number}: not JSON: {error}") from error
        else:
            records.append(record)
    return records


def _end_of_last_line(descriptor: int, size: int) -> int:
    """Return the offset after the last newline, searched from the end: logs of rollouts are long."""
    end = size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
