"""Messages between a fleet and its processes: pickled objects over a socket, each with its length before it.

Both ends are oncurve's own processes on one machine, connected by a pair of sockets that has no name, so that no
other process can write to it.
"""

from __future__ import annotations

import io
import socket
import struct
import threading
from typing import Any

import cloudpickle
from torch import Tensor

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20


class ClosedError(Exception):
    """The other end is closed, or takes nothing within the limit."""


class ProcessorPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as tensors of a processor: the process that reads them may have no GPU, or another."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is pickled."""
        if type(obj) is Tensor and obj.device.type not in ("cpu", "meta"):
            return obj.detach().cpu().__reduce_ex__(2)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def pickled(message: Any, pickler: type[ProcessorPickler] = ProcessorPickler) -> bytes:
    """Return a message as bytes. Its tensors are on a processor when they are read."""
    file = io.BytesIO()
    pickler(file).dump(message)
    return file.getvalue()


def framed(data: bytes) -> bytes:
    """Return a pickled message with its length before it."""
    return bytes(_LENGTH.pack(len(data)) + data)


class Frames:
    """The messages in bytes that come piece by piece, as they become complete."""

    def __init__(self) -> None:
        self._read = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that are complete with `data`, the next bytes."""
        self._read += data
        found = []
        while len(self._read) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._read)
            end = _LENGTH.size + length
            if len(self._read) < end:
                break
            found.append(cloudpickle.loads(bytes(self._read[_LENGTH.size : end])))
            del self._read[:end]
        return found


class Channel:
    """One end. Several threads may send; one receives."""

    def __init__(self, end: socket.socket, seconds: float) -> None:
        """`seconds`: the limit of a send, and of the rest of a message whose beginning has come."""
        self.end = end
        end.settimeout(seconds)
        self._sending = threading.Lock()
        self._frames = Frames()

    def send(self, message: Any) -> None:
        """Send `message`. Raises ClosedError."""
        self.send_pickled(pickled(message))

    def send_pickled(self, data: bytes) -> None:
        """Send a message that is pickled already. Raises ClosedError."""
        try:
            with self._sending:
                self.end.sendall(_LENGTH.pack(len(data)))
                self.end.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def arrived(self) -> list[Any]:
        """Return the messages that are complete after one read, to be called where there is something to read.

        Raises ClosedError: the other end is closed.
        """
        try:
            data = self.end.recv(_PIECE)
        except TimeoutError:
            return []
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not data:
            raise ClosedError("the other end is closed")
        return self._frames.feed(data)

    def close(self) -> None:
        """Close this end. Twice is allowed."""
        self.end.close()
