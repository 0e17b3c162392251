"""A keeper: the light process that Ray starts on a machine, and which starts the one that computes (serving.py)."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
from typing import Any


def keeper_class() -> type:
    """Return the class of a keeper, defined here so that Ray sends it by value and its process imports no torch."""

    class Keeper:
        """Starts a process, passes bytes on, and says how the process has ended."""

        def __init__(self, target: str, source: str, recipe: bytes, environment: dict[str, str]) -> None:
            sys.path.append(source)
            from oncurve.processes.spawn import start_python

            self.token, self.memory = b"", os.memfd_create("oncurve")
            self.end, theirs = socket.socketpair()
            self.end.settimeout(600.0)
            with theirs, open(os.memfd_create("recipe"), "w+b") as file:
                file.write(recipe)
                file.seek(0)
                self.child = start_python(
                    target,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    pass_fds=(theirs.fileno(),),
                    stdin=file,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                )

        def send(self, data: bytes, token: bytes = b"", *pieces: Any) -> None:
            """Pass `data` on; with `pieces` in memory that the process reads, whose number takes the token's place.

            The memory of the token before it is freed: the calls with it were answered.
            """
            from oncurve.processes.shared import write_pieces

            if token:
                if token != self.token:
                    os.close(self.memory)
                    self.token, self.memory = token, os.memfd_create("oncurve")
                    write_pieces(self.memory, map(memoryview, pieces))
                data = data.replace(token, b"%016d" % self.memory)
            try:
                self.end.sendall(data)
            except OSError:  # it has ended, or takes nothing and has perhaps half of it: `listen` says so
                self.child.kill()

        def listen(self) -> tuple[bytes, str | None]:
            """Return what the process has said, after a second perhaps nothing; and how it has ended, if it has."""
            from oncurve.processes.spawn import ending

            said, seconds = bytearray(), 1.0
            while len(said) < 1 << 24 and select.select([self.end], [], [], seconds)[0]:
                data = b""
                with contextlib.suppress(OSError):
                    data = self.end.recv(1 << 20)
                if not data:
                    return bytes(said), ending(self.child)
                said += data
                seconds = 0.0
            return bytes(said), None

    return Keeper


def cause_of(error: BaseException) -> str:
    """Return what has happened to a keeper, as Ray's `error` says it, in one line."""
    text = str(error)
    found = re.search(r"^\s*ip: (\S+)", text, re.MULTILINE)
    where = f"on {found[1]} " if found else ""
    if re.search(r"node (has died|died|was terminated|failure)|its node", text, re.IGNORECASE):
        return f"its machine {found[1] + ' ' if found else ''}has ended or cannot be reached"
    if type(error).__name__ == "ActorUnavailableError":
        return f"the connection to the process {where}was lost, and what it has received is not known"
    detail = re.search(r"Worker exit detail: ([^\n]*)", text)
    if detail:
        return f"the Ray process {where}that watched it has ended: {detail[1].partition('. Some ')[0][:300]}"
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return f"Ray: {lines[-1].strip()[:300]}" if lines else f"Ray: {type(error).__name__}"
