"""The parent's side: start workers, hand out items in chunks, watch a deadline for each item, replace what dies."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from oncurve.errors import ConfigError
from oncurve.workers.serve import plain

STARTUP_SECONDS = 300.0  # importing torch from a cold disk, on a loaded machine, and then some
LARGEST_CHUNK = 64
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


class WorkerPool:
    """Processes that each hold the callable `factory(**settings)` and apply it to items.

    factory              path of a callable ("module:name" or "file.py:name"), imported in the workers only; what it
                         returns is called with one item (JSON) and returns JSON; its attribute `about` is handed back
    settings             JSON
    processes            how many
    timeout_seconds      for one item; a worker that takes longer is killed
    memory_limit_bytes   what a worker may allocate beyond its size once loaded; None: no limit

    Workers start at once, in the background, and are killed by `close()`, when the pool is forgotten, at exit, and
    when this process dies. Not for use from two threads at a time.
    """

    def __init__(
        self,
        factory: str,
        settings: Mapping[str, Any],
        *,
        processes: int = 1,
        timeout_seconds: float = 10.0,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._start = (
            json.dumps(
                {
                    "factory": factory,
                    "settings": dict(settings),
                    "sys_path": [str(Path(entry).absolute()) for entry in sys.path],
                    "memory_limit_bytes": memory_limit_bytes,
                }
            ).encode()
            + b"\n"
        )
        self._workers: list[_Worker] = []
        self._close = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        self._workers.extend(_Worker(self._start) for _ in range(processes))

    @property
    def about(self) -> Any:
        """What the loaded callable says about itself. Waits for a worker; raises ConfigError if it cannot start."""
        self._require_open()
        while not any(worker.ready for worker in self._workers):
            self._turn({}, deque())
        return next(worker.about for worker in self._workers if worker.ready)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def run(self, items: Sequence[Any]) -> list[Reply]:
        """One reply an item, in order. An item is given to a worker once; a worker it kills is replaced.

        Raises TypeError for an item that is not JSON, ConfigError when a worker cannot start, ValueError when closed.
        """
        self._require_open()
        encoded = [json.dumps(item, default=plain) for item in items]
        waiting = deque(range(len(items)))
        replies: dict[int, Reply] = {}
        for place, worker in enumerate(self._workers):
            if worker.process.poll() is not None:
                self._replace(place)  # it died idle: no item's fault
        try:
            while len(replies) < len(items):
                self._hand_out(waiting, encoded)
                self._turn(replies, waiting)
        except BaseException:
            for place, worker in enumerate(self._workers):
                if worker.pending:  # their answers would be taken for those of the next run
                    self._replace(place)
            raise
        return [replies[index] for index in range(len(items))]

    def close(self) -> None:
        """Kill the workers and what they started. Closing twice is allowed."""
        self._close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self._close.alive:
            raise ValueError("the worker pool is closed")

    def _hand_out(self, waiting: deque[int], encoded: list[str]) -> None:
        """Several items in one message keep the channel cheap; several messages a run keep the workers equally busy."""
        chunk = min(LARGEST_CHUNK, math.ceil(len(encoded) / (2 * len(self._workers))))
        for worker in self._workers:
            if waiting and worker.ready and not worker.pending:
                indices = [waiting.popleft() for _ in range(min(chunk, len(waiting)))]
                worker.pending.extend(indices)
                seconds, chosen = self.timeout_seconds * len(indices), ",".join(encoded[index] for index in indices)
                worker.outgoing += f'{{"seconds": {seconds}, "items": [{chosen}]}}\n'.encode()
                worker.deadline = time.monotonic() + self.timeout_seconds

    def _turn(self, replies: dict[int, Reply], waiting: deque[int]) -> None:
        """Wait for something to happen, and deal with it. A reply that is there counts, however late it is read."""
        deadlines = [worker.deadline for worker in self._workers if worker.pending or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for place, worker in enumerate(self._workers):
                selector.register(worker.incoming, selectors.EVENT_READ, place)
                if worker.outgoing:
                    selector.register(worker.request, selectors.EVENT_WRITE, place)
            happened = selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        for key, event in happened:
            worker = self._workers[key.data]
            if event & selectors.EVENT_WRITE and key.fd == worker.request:
                worker.send()
            elif event & selectors.EVENT_READ and key.fd == worker.incoming:
                alive = worker.receive(replies, self.timeout_seconds)
                if worker.spent:
                    waiting.extendleft(reversed(worker.pending))
                    self._replace(key.data)  # what it keeps allocated would be held against the next item
                elif not alive:
                    self._bury(key.data, Reply(None, "died", worker.obituary()), replies, waiting)
        if not happened:
            for place, worker in enumerate(self._workers):
                if (worker.pending or not worker.ready) and time.monotonic() >= worker.deadline:
                    reply = Reply(None, "timeout", f"no answer within {self.timeout_seconds:g} seconds")
                    self._bury(place, reply, replies, waiting)

    def _bury(self, place: int, reply: Reply, replies: dict[int, Reply], waiting: deque[int]) -> None:
        """The item that a worker was at gets `reply`; those it had not begun go to others."""
        worker = self._workers[place]
        if not worker.ready:
            self.close()
            raise ConfigError(worker.failure or f"a worker did not start: {reply.message}")
        if worker.pending:
            replies[worker.pending.popleft()] = reply
        waiting.extendleft(reversed(worker.pending))
        self._replace(place)

    def _replace(self, place: int) -> None:
        self._workers[place].kill()
        self._workers[place] = _Worker(self._start)


class _Worker:
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
                start_new_session=True,  # a process group to kill, and no Ctrl-C from the terminal
                env={**os.environ, **threads},
            )
        finally:
            os.close(for_child)
            os.close(from_child)
        for descriptor in (self.request, self.incoming):
            os.set_blocking(descriptor, False)
        self.outgoing = bytearray(start)
        self.partial = b""
        self.pending: deque[int] = deque()
        self.deadline = time.monotonic() + STARTUP_SECONDS
        self.ready = False
        self.spent = False
        self.killed = False
        self.about: Any = None
        self.failure = ""

    def send(self) -> None:
        """Write as much as the pipe takes; a dead worker is noticed when reading."""
        try:
            del self.outgoing[: os.write(self.request, self.outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.outgoing.clear()

    def receive(self, replies: dict[int, Reply], timeout_seconds: float) -> bool:
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
                replies[self.pending.popleft()] = reply
                self.spent = self.spent or reply.fault == "memory"
                self.deadline = time.monotonic() + timeout_seconds
        return bool(data)

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


def _kill_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked copy of the parent: they are not its workers
    while workers:
        workers.pop().kill()
