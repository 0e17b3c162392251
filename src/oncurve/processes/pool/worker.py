"""One worker process as its parent sees it: two pipes, the pending items, the replies, and how it ended."""

import array
import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import termios
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from oncurve.base.closing import reap
from oncurve.base.output import worker_stderr
from oncurve.processes.spawn import END, how_it_ended, start_python

_PATIENCE_SECONDS = 1.0  # for the supervisor of a worker whose channel has closed: its exit status is the worker's
_SLOWEST_END_SECONDS = 5.0
_SENT_TO_END = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
"""Signals with which others end a process; the other signals are crashes."""


@dataclass(frozen=True)
class WorkerReply:
    """The result of one item: `value`, or the kind of `fault` and a `message` (a traceback, or the known facts).

    Faults: "exception" (any BaseException), "exit" (sys.exit), "memory" (over the limit), "type" (the value is not
    JSON), "timeout", "died" (os._exit, a crash, killed from outside twice, a line on the channel that is no reply).
    """

    value: Any = None
    fault: str | None = None
    message: str = ""


@dataclass(eq=False)
class PoolWork:
    """The items of one caller, as the dispatcher keeps them; the caller reads it after an entry in `done`.

    expected        the number of items, once the caller waits for them
    busy_seconds    time that workers have spent on it; `early_seconds` of that before the caller waited
    done            gets one entry when all replies are there, or no more will come
    """

    timeout_seconds: float
    replies: dict[int, WorkerReply] = field(default_factory=dict)
    given: int = 0
    expected: int | None = None
    busy_seconds: float = 0.0
    early_seconds: float = 0.0
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)

    @property
    def complete(self) -> bool:
        """Return whether every item has its reply."""
        return self.expected is not None and len(self.replies) == self.expected


@dataclass(eq=False)
class PoolItem:
    """One item: number `index` of `work`, as JSON. `kills`: how often others killed a worker that computed it."""

    work: PoolWork
    index: int
    encoded: str
    kills: int = 0


class PoolWorker:
    """One process and the two pipes to it.

    pending    its items without a reply, in order; the first one has the number `answered`
    later      items whose future has not ended, with their deadlines, by their numbers

    The process is the worker's supervisor (`oncurve.processes.pool.serve`). Every reply carries the secret of this
    worker and the number of its item, so that no other line on the channel passes for a reply.
    """

    def __init__(self, message: Mapping[str, Any], environment: Mapping[str, str], start_seconds: float) -> None:
        """`message` is its first one, and loading may take `start_seconds`."""
        for_child, self.request = os.pipe()
        self.incoming, from_child = os.pipe()
        try:
            self.process = start_python(
                "oncurve.processes.pool.serve:serve",
                *map(str, (for_child, from_child, os.getpid())),
                pass_fds=(for_child, from_child),
                stdin=subprocess.DEVNULL,
                stderr=worker_stderr(),
                # A group to kill, which Ctrl-C in the terminal does not reach. Not a session: the kernel divides
                # cores by session first, and workers would take too much from a parent that is sampling.
                process_group=0,
                env=dict(environment),
            )
        finally:
            os.close(for_child)
            os.close(from_child)
        for descriptor in (self.request, self.incoming):
            os.set_blocking(descriptor, False)
        self._secret = secrets.token_hex(8)
        self.outgoing = bytearray(json.dumps({**message, "secret": self._secret}).encode() + b"\n")
        self.partial = b""
        self.pending: deque[PoolItem] = deque()
        self.later: dict[int, tuple[PoolItem, float]] = {}
        self.answered = 0
        self.since = time.monotonic()  # when it began the first of `pending`
        self.deadline = self.since + start_seconds
        self._other_clock = start_seconds
        self.ready = self.spent = self.importing = self.killed = self.killed_by_others = False
        self._broken = self._refused = False
        self.about: Any = None
        self.failure = ""

    @property
    def watched(self) -> bool:
        """Return whether its deadline counts: it is loading, or at an item."""
        return not self.killed and (bool(self.pending or self.later) or not self.ready)

    @property
    def unanswered(self) -> list[PoolItem]:
        """Return all items without a reply."""
        return [*(item for item, _ in self.later.values()), *self.pending]

    @property
    def next_due(self) -> tuple[float, int]:
        """Return the deadline that is next, and the number of its item."""
        first = [(self.deadline, self.answered)] if self.pending or not self.ready else []
        return min([*first, *((due, number) for number, (_, due) in self.later.items())])

    def item(self, number: int) -> PoolItem:
        """Return the first pending item, or that of `later` with this number."""
        return self.later[number][0] if number in self.later else self.pending[0]

    def give(self, items: list[PoolItem]) -> None:
        """Send items in one message."""
        self.pending.extend(items)
        self.outgoing += f'{{"items": [{",".join(item.encoded for item in items)}]}}\n'.encode()
        self._begin()

    def send(self) -> None:
        """Write as much as the pipe takes; `receive` notices a dead worker."""
        try:
            del self.outgoing[: os.write(self.request, self.outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.outgoing.clear()
            self._refused = True

    @property
    def began(self) -> bool:
        """Return whether the worker has read its last message to the end. If not, it has begun none of `pending`."""
        unread = array.array("i", [0])
        with contextlib.suppress(OSError):  # a system that cannot tell
            fcntl.ioctl(self.request, termios.FIONREAD, unread)
        return not (self._refused or self.outgoing or unread[0])

    def receive(self) -> bool:
        """Read the replies that have come; False: this worker is finished (dead, or to be replaced)."""
        data = os.read(self.incoming, 1 << 20)
        *lines, self.partial = (self.partial + data).split(b"\n")
        self._broken = not all(self._understood(line) for line in lines)
        return bool(data) and not self._broken

    def _understood(self, line: bytes) -> bool:
        """Read one line of the worker; False: `serve` did not write it, or it answers no pending item."""
        try:
            line_read = json.loads(line)
        except (ValueError, RecursionError):
            return False  # user code wrote to the channel
        if not isinstance(line_read, dict) or line_read.pop("secret", None) != self._secret:
            return False
        if not self.ready:
            if line_read.keys() == {"ready"}:
                self.ready, self.about = True, line_read["ready"]
                return True
            self.failure = str(line_read.get("failed", ""))
            return line_read.keys() == {"failed"}
        if line_read.keys() == {"importing"} and self.pending:
            self._import(line_read["importing"] is True)
            return True
        number, fault, message = line_read.get("number"), line_read.get("fault"), line_read.get("message", "")
        if type(number) is not int:
            return False
        if number not in self.later and (number != self.answered or not self.pending):
            return False
        if not (fault is None or isinstance(fault, str)) or not isinstance(message, str):
            return False
        self.spent = self.spent or fault == "memory"
        if line_read.get("later") is True and number not in self.later:
            self.later[number] = (self.pending[0], self.deadline + _PATIENCE_SECONDS)
            self._next()
        else:
            self.settle(WorkerReply(line_read.get("value"), fault, message), number)
        return True

    def settle(self, reply: WorkerReply, number: int) -> None:
        """Give the item with this number its reply."""
        item = self.later.pop(number)[0] if number in self.later else self._next()
        item.work.replies[item.index] = reply

    def _next(self) -> PoolItem:
        """Return the first pending item, which is pending no more; the next one begins."""
        item = self.pending.popleft()
        self.answered += 1
        item.work.busy_seconds += time.monotonic() - self.since
        self._begin()
        return item

    def _begin(self) -> None:
        self.since = time.monotonic()
        self._import(False)
        if self.pending:
            self.deadline = self.since + self.pending[0].work.timeout_seconds

    def _import(self, begins: bool) -> None:
        """Stop the clock of the first pending item while it imports a module; all imports share the time of a start."""
        now = time.monotonic()
        if begins != self.importing:
            self.importing = begins
            self.deadline, self._other_clock = self._other_clock + now, self.deadline - now

    def how_it_ended(self) -> str:
        """Return how the process ended, in words. A worker that still runs has lost its channel, and is killed."""
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # something else in this process collects the ends of children
            self.killed_by_others = True
            return "the worker process ended, and how is not known"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self._broken else _PATIENCE_SECONDS)
        code = self.process.returncode
        if code is None:
            self.kill()
            code = self.process.poll()
            if not code:  # the supervisor ended it, as it was told, or the kernel has not ended it yet
                return "the worker process broke its channel"
        self.killed_by_others = -code in _SENT_TO_END
        return how_it_ended(code, "the worker process")

    def kill(self) -> None:
        """End the worker and its processes, and wait for it. Twice is allowed."""
        if self.killed:
            return
        self.killed = True
        for descriptor in (self.request, self.incoming):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(END)  # the supervisor ends all processes
            self.process.wait(_SLOWEST_END_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        reap(self.process, _SLOWEST_END_SECONDS)
