"""One worker process as its parent sees it: the two pipes, what it was given, what it said, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

STARTUP_SECONDS = 300.0  # importing torch from a cold disk, on a loaded machine, and then some
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from oncurve.workers.serve import serve; serve(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True)
class Reply:
    """What became of one item: `value`, or the kind of `fault` and a `message` (a traceback, or what is known).

    Faults: "exception" (any BaseException), "exit" (sys.exit), "memory" (over the limit), "type" (the value is not
    JSON), "timeout", "died" (os._exit, a crash, killed from outside).
    """

    value: Any = None
    fault: str | None = None
    message: str = ""


@dataclass(eq=False)
class Work:
    """What one caller handed in, as the dispatcher keeps it; the caller reads it once `done` says that it is over.

    expected        items there will be, once the caller waits for them
    busy_seconds    time that workers have spent on it; `early_seconds` of that before the caller waited
    done            gets one entry when all replies are there, or none will come any more
    """

    timeout_seconds: float
    replies: dict[int, Reply] = field(default_factory=dict)
    given: int = 0
    expected: int | None = None
    busy_seconds: float = 0.0
    early_seconds: float = 0.0
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)

    @property
    def complete(self) -> bool:
        """Whether every item has its reply."""
        return self.expected is not None and len(self.replies) == self.expected


@dataclass(frozen=True)
class Item:
    """One item on its way: number `index` of `work`, as JSON."""

    work: Work
    index: int
    encoded: str


class Worker:
    """One process and the two pipes to it. `pending`: the items it was given and has not answered, in order."""

    def __init__(self, start: bytes) -> None:
        for_child, self.request = os.pipe()
        self.incoming, from_child = os.pipe()
        threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        source = str(Path(__file__).parents[2])
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, source, str(for_child), str(from_child), str(os.getpid())],
                pass_fds=(for_child, from_child),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the worker makes it stderr
                # A group to kill, which no Ctrl-C of the terminal reaches. Not a session: cores are shared out
                # by session first, and workers would take more than their part from a parent that is sampling.
                process_group=0,
                env={**os.environ, **threads},
            )
        finally:
            os.close(for_child)
            os.close(from_child)
        for descriptor in (self.request, self.incoming):
            os.set_blocking(descriptor, False)
        self.outgoing = bytearray(start)
        self.partial = b""
        self.pending: deque[Item] = deque()
        self.since = time.monotonic()  # when it began the first of `pending`
        self.deadline = self.since + STARTUP_SECONDS
        self.ready = False
        self.spent = False
        self.killed = False
        self.about: Any = None
        self.failure = ""

    @property
    def watched(self) -> bool:
        """Whether its deadline counts: it is loading, or at an item."""
        return not self.killed and (bool(self.pending) or not self.ready)

    def give(self, items: list[Item]) -> None:
        """Put items on the way, in one message."""
        seconds = sum(item.work.timeout_seconds for item in items)
        self.pending.extend(items)
        self.outgoing += f'{{"seconds": {seconds}, "items": [{",".join(item.encoded for item in items)}]}}\n'.encode()
        self._begin()

    def send(self) -> None:
        """Write as much as the pipe takes; a dead worker is noticed when reading."""
        try:
            del self.outgoing[: os.write(self.request, self.outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.outgoing.clear()

    def receive(self) -> bool:
        """Read what is there; False: this worker is finished (dead, or to be replaced)."""
        data = os.read(self.incoming, 1 << 20)
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                return False  # user code found the channel and wrote to it
            if not isinstance(said, dict):
                return False
            if "ready" in said:
                self.ready, self.about = True, said["ready"]
            elif "failed" in said:
                self.failure = said["failed"]
            elif self.pending:
                reply = Reply(said.get("value"), said.get("fault"), said.get("message", ""))
                self.spent = self.spent or reply.fault == "memory"
                self.settle(reply)
        return bool(data)

    def settle(self, reply: Reply) -> None:
        """The first pending item has its reply; the next one begins."""
        item = self.pending.popleft()
        item.work.replies[item.index] = reply
        item.work.busy_seconds += time.monotonic() - self.since
        self._begin()

    def _begin(self) -> None:
        self.since = time.monotonic()
        if self.pending:
            self.deadline = self.since + self.pending[0].work.timeout_seconds

    def obituary(self) -> str:
        """How the process ended, in words."""
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the worker process broke its channel"
        if code < 0:
            return f"the worker process was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"the worker process ended with exit code {code}"

    def kill(self) -> None:
        """End the process and its group, and wait for it. Twice is allowed."""
        if self.killed:
            return
        self.killed = True
        for descriptor in (self.request, self.incoming):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
