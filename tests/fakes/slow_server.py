"""A server whose answer stops, drips or floods at one of its parts, and never ends."""

import itertools
import socket
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from fakes.tables import table

PARTS = {name: [text.encode("latin-1") for text in part] for name, part in table("slow_server", "parts").items()}
"""What comes before the end that never comes, and what comes in its place, by part of an answer."""

PACES = ("stops", "drips", "floods")


class SlowServer:
    """A server of one answer at a time. `reached`: it has begun with the endless part; `left`: the client has gone."""

    def __init__(self, part: str, pace: str) -> None:
        self.before, self.unit = PARTS[part]
        self.pace, self.reached, self.left, self._over = pace, Event(), Event(), Event()
        self._end = socket.create_server(("127.0.0.1", 0))
        self._end.settimeout(60)
        scheme = "https" if part == "handshake of TLS" else "http"
        self.url = f"{scheme}://127.0.0.1:{self._end.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while not self._over.is_set():
                connection, _ = self._end.accept()
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with suppress(OSError):  # the client has gone while this sends
            if not connection.recv(1 << 16):
                return
            connection.settimeout(0.01)
            connection.sendall(self.before)
            self.reached.set()
            flood = self.unit * (4096 // len(self.unit))
            for drop in itertools.cycle(self.unit):
                with suppress(TimeoutError):  # the pause between two drops
                    if self.pace == "floods":
                        connection.sendall(flood)
                    elif self.pace == "drips":
                        connection.sendall(bytes([drop]))
                    if not connection.recv(1 << 16):
                        break
                if self._over.is_set():
                    return
        self.left.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end.close()
