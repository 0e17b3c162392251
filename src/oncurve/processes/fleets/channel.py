"""Messages between a fleet and its processes: pickled objects over a socket, each with its length before it.

Both ends are oncurve's own processes on one machine, connected by a pair of sockets that has no name, so that no
other process can write to it.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
from queue import SimpleQueue
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


def pickled(message: Any) -> bytes:
    """Return a message as bytes. Its tensors are on a processor when they are read."""
    file = io.BytesIO()
    ProcessorPickler(file).dump(message)
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


class Sender:
    """Sends over a channel in a thread of its own, in order: whoever sends does not wait for the other end.

    What the other end has not taken is kept in memory until it does, or until the channel is shut down.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send_pickled(self, data: bytes) -> None:
        """Send a message that is pickled already, soon; a channel that is shut down loses it."""
        self._messages.put(data)

    def close(self, seconds: float) -> None:
        """End the thread, once the channel is shut down. Twice is allowed."""
        self._messages.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        with contextlib.suppress(ClosedError):  # whoever reads from the channel notices
            while (data := self._messages.get()) is not None:
                self._channel.send_pickled(data)
