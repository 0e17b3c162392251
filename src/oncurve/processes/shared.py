"""Bytes that one process writes once and others of the same machine read.

    handle = SharedBytes(pieces)       written into memory that has a descriptor, and no name in a file system
    pickle.loads(pickle.dumps(handle)) in another process of the same user: the pieces, read-only, nothing copied

The memory is freed when the handle is garbage-collected and no other process has the pieces any more. It is memory of
`memfd_create`, to which the size of /dev/shm does not apply.
"""

import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

Pieces = list[memoryview]


class SharedBytes:
    """`pieces` in shared memory. Pickled, it becomes the list of the pieces; an empty list where they are gone.

    Each piece may be overwritten as soon as the next one is asked for. Raises OSError: there is no room.
    """

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self.descriptor = os.memfd_create("oncurve")
        weakref.finalize(self, os.close, self.descriptor)
        self._lengths = write_pieces(self.descriptor, pieces)

    def __reduce__(self) -> tuple[Callable[..., Pieces], tuple[str, list[int], tuple[int, int]]]:
        status = os.fstat(self.descriptor)
        path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return _opened, (path, self._lengths, (status.st_dev, status.st_ino))


def write_pieces(descriptor: int, pieces: Iterable[memoryview]) -> list[int]:
    """Write pieces one after another; return their lengths. Raises OSError: there is no room."""
    with open(descriptor, "wb", closefd=False) as file:
        return [file.write(piece) for piece in pieces]


def _opened(path: str, lengths: list[int], identity: tuple[int, int] | None = None) -> Pieces:
    """Return the pieces in a descriptor of another process, read-only, which stay when it is closed.

    `identity`: of the file that it must be, because a descriptor's number may be another file's by now.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # the handle is no longer kept, or its process has ended
        return []
    try:
        status = os.fstat(descriptor)
        if identity not in (None, (status.st_dev, status.st_ino)) or not 0 < status.st_size == sum(lengths):
            return []
        whole = memoryview(mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
    ends = accumulate(lengths)
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class StoredBytes:
    """`pieces` in Ray's object store. Pickled, it becomes the list of the pieces where a keeper has them in memory.

    Each piece may be overwritten as soon as the next one is asked for. Raises OSError: there is no room.
    """

    def __init__(self, ray: Any, pieces: Iterable[memoryview]) -> None:
        import numpy as np  # here: a keeper, which imports this module, does without

        self.token = secrets.token_hex(8)
        self.references: list[Any] = []
        self._lengths: list[int] = []
        try:
            for piece in pieces:
                self.references.append(ray.put(np.frombuffer(piece, dtype=np.uint8)))
                self._lengths.append(len(piece))
        except ray.exceptions.RayError as error:
            raise OSError(str(error).partition("\n")[0]) from error

    def __reduce__(self) -> tuple[Callable[..., Pieces], tuple[str, list[int]]]:
        return _arrived, (self.token, self._lengths)


def _arrived(number: str, lengths: list[int]) -> Pieces:
    """Return the pieces in the keeper's descriptor of this number; none where it has others by now."""
    return _opened(f"/proc/{os.getppid()}/fd/{int(number)}", lengths)
