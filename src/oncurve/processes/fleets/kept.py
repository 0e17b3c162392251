"""A process of another machine, as a keeper starts it: it makes the object itself, and serves it as a fork does.

    driver ---- Ray ----> keeper ---- channel ----> this process

The keeper is the process that Ray starts. It passes bytes on, and says how this process has ended. So the first cause
of a death is known (a signal, an exit code), and nothing that this process computes keeps Ray's own threads waiting.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from oncurve.processes.fleets.channel import Channel
from oncurve.processes.fleets.recipe import made_here
from oncurve.processes.fleets.serving import SEND_SECONDS, explained, serve
from oncurve.processes.shared import Pieces, pieces_of
from oncurve.processes.spawn import end_with, unblock


class StoredBytes:
    """`pieces` in Ray's object store. Pickled, it becomes the list of the pieces where a keeper has them in memory.

    Each piece may be overwritten as soon as the next one is asked for. Raises OSError: there is no room.
    """

    def __init__(self, ray: Any, pieces: Iterable[memoryview]) -> None:
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
    """The pieces in the keeper's descriptor of this number; none where it has others by now."""
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/{int(number)}", os.O_RDONLY)
    except OSError:
        return []
    try:
        return pieces_of(descriptor, lengths) if os.fstat(descriptor).st_size == sum(lengths) > 0 else []
    finally:
        os.close(descriptor)


def main(descriptor: str, keeper: str) -> NoReturn:
    """Make the object of the recipe on standard input, and serve it on a socket with this descriptor.

    keeper   the process id of the keeper, with which this process ends
    """
    end_with(int(keeper))
    unblock()
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    try:
        made, other = made_here()
    except BaseException as error:
        Channel(end, SEND_SECONDS).send(("unmade", explained(error)))
        os._exit(1)
    serve(made, end, other)
