"""Messages between a fleet and its processes: pickled objects over a socket, each with its length before it.

Both ends are oncurve's own processes on one machine, connected by a pair of sockets that has no name, so that no
other process can write to it.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import cloudpickle

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20


class ClosedError(Exception):
    """The other end is closed, or takes nothing within the limit."""


class Channel:
    """One end. Several threads may send; one receives."""

    def __init__(self, end: socket.socket, seconds: float) -> None:
        """`seconds`: the limit of a send, and of the rest of a message whose beginning has come."""
        self.end = end
        end.settimeout(seconds)
        self._sending = threading.Lock()
        self._read = bytearray()

    def send(self, message: Any) -> None:
        """Send `message`. Raises ClosedError."""
        data = cloudpickle.dumps(message)
        try:
            with self._sending:
                self.end.sendall(_LENGTH.pack(len(data)))
                self.end.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def arrived(self) -> list[Any]:
        """The messages that are complete after one read, to be called where there is something to read.

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

    def close(self) -> None:
        """Close this end. Twice is allowed."""
        self.end.close()
