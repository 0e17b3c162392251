"""A fleet of processes on this machine, forked from a nursery.

A thread serves the processes: it reads what they say, starts and kills as `Health` orders, and so acts also while the
training thread computes or waits for a rank. No file and no port has a name that others could connect to.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle

from oncurve.closing import Closing
from oncurve.cluster.channel import Channel, ClosedError, Sender
from oncurve.cluster.fleet import Event, Health, Kill, Order, Start, act_on
from oncurve.cluster.shared import SharedBytes
from oncurve.errors import ConfigError
from oncurve.output import worker_stderr
from oncurve.parallel import FileMeeting
from oncurve.spec import imported_files

START_SECONDS = 600.0
"""For importing everything and making the object; a fork of it takes milliseconds."""

_SEND_SECONDS = 600.0
_TURN_SECONDS = 0.25
_CAUSE_SECONDS = 2.0
_END_SECONDS = 5.0
_BOOT = "import sys; sys.path.append(sys.argv[1]); from oncurve.cluster.nursery import main; main(int(sys.argv[2]))"


class _Process:
    """A process that was started, as the fleet sees it. `pid` and `handle` are known once it has spoken."""

    def __init__(self, end: socket.socket) -> None:
        self.channel = Channel(end, _SEND_SECONDS)
        self.sender = Sender(self.channel)
        self.handle: int | None = None
        self.closed_at: float | None = None
        self.how = ""

    def release(self) -> None:
        """Close what this process holds of it."""
        with contextlib.suppress(OSError):
            self.channel.end.shutdown(socket.SHUT_RDWR)  # a send that waits ends with an error
        self.sender.close(_END_SECONDS)
        self.channel.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class HostFleet(Closing):
    """`places` processes of this machine, each with the object that `make()` returns in the nursery.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced

    See `oncurve.cluster.fleet.Fleet` for the methods. The processes start in the background. They end with `close()`,
    when the fleet is garbage-collected, and when this process dies, however it dies.
    """

    def __init__(self, make: Callable[[], Any], places: int, silence_seconds: float = 20.0) -> None:
        recipe = cloudpickle.dumps(
            {"path": _absolute(sys.path), "files": imported_files(), "make": cloudpickle.dumps(make)}
        )
        self._health = Health(places, silence_seconds, START_SECONDS)
        self._processes: dict[int, _Process] = {}
        self._events: deque[Event] = deque()
        self._numbers = 0
        self._failure: str | None = None
        self._folder: Path | None = None
        self._meetings = 0
        self._ready = self._closed = False
        self._changed = threading.Condition()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = str(Path(__file__).parents[2])
        with theirs:
            self._nursery = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, source, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=worker_stderr(),
                process_group=0,  # Ctrl-C in the terminal is for this process, which ends the others in order
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        threading.Thread(target=_feed, args=(self._nursery, recipe), daemon=True).start()
        self._thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), self._control, self._processes), daemon=True
        )
        self._thread.start()
        self._end = weakref.finalize(self, _end, self._nursery, self._control, os.getpid())

    def up(self) -> list[int]:
        """The processes that can be called, by their places."""
        with self._changed:
            return self._health.up

    def settled(self, seconds: float) -> list[int]:
        """`up()`, as soon as no process is starting; after so many `seconds` in any case.

        Raises ConfigError: the nursery could not make the object.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not self._health.starting, seconds)
            if self._failure is not None and not self._ready:
                raise ConfigError(f"cluster.kind: the processes cannot start: {self._failure}")
            return self._health.up

    @property
    def quarantined(self) -> bool:
        """Whether every place is in quarantine: no process is up, and none will be soon."""
        with self._changed:
            return self._health.quarantined

    def put(self, pieces: Iterable[memoryview]) -> SharedBytes:
        """A handle of these bytes in shared memory. Raises OSError: there is no room for them."""
        return SharedBytes(pieces)

    def call(self, process: int, method: str, *arguments: Any) -> int:
        """Call a method of the object of `process`; the number of the call."""
        with self._changed:
            self._numbers += 1
            number, found = self._numbers, self._processes.get(process)
        if found is not None:
            found.sender.send((number, method, arguments))
        return number

    def wait(self, seconds: float) -> list[Event]:
        """What has happened since the last call, in order; after so many `seconds` perhaps nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, seconds)
            found = list(self._events)
            self._events.clear()
            return found

    def kill(self, process: int, cause: str) -> None:
        """End a process because of `cause`; another takes its place."""
        with self._changed:
            self._obey(self._health.condemn(process, cause))

    def meeting(self) -> FileMeeting:
        """A file of this machine, in a folder that `close` removes."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="oncurve-ranks-"))
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, True)
        self._meetings += 1
        return FileMeeting(self._folder / f"world-{self._meetings}")

    def close(self) -> None:
        """End all processes. Twice is allowed."""
        self._closed = True
        self._end()
        if self._folder is not None:
            self._remove()
        self._thread.join(_END_SECONDS)
        for process in self._processes.values():
            process.release()
        self._processes.clear()
        self._control.close()

    def turn(self) -> bool:
        """One round of the thread: wait shortly for something to read, and act on it. False: the fleet is closed."""
        with self._changed:
            if self._ready:
                self._obey(self._health.orders(time.monotonic()))
            watched = {number: process.channel.end for number, process in self._open()}
        with selectors.DefaultSelector() as selector:
            if self._failure is None:
                selector.register(self._control, selectors.EVENT_READ, None)
            for number, end in watched.items():
                selector.register(end, selectors.EVENT_READ, number)
            ready = [key.data for key, _ in selector.select(_TURN_SECONDS)]
        with self._changed:
            if self._closed:
                return False
            for number in ready:
                if number is None:
                    self._hear_nursery()
                else:
                    self._hear(number, self._processes[number])
            self._bury()
            self._changed.notify_all()
        return True

    def _open(self) -> list[tuple[int, _Process]]:
        return [(number, process) for number, process in self._processes.items() if process.closed_at is None]

    def _hear_nursery(self) -> None:
        try:
            words = self._control.recv(1 << 13).decode(errors="replace").split("\0")
        except OSError:
            words = [""]
        match words:
            case ["ready"]:
                self._ready = True
            case ["ended", number, how]:
                if (process := self._processes.get(int(number))) is not None:
                    process.how = how
            case ["failed", why]:
                self._failure = why
            case _:
                code = self._nursery.poll()
                self._failure = self._failure or f"their nursery has ended (exit code {code})"

    def _hear(self, number: int, process: _Process) -> None:
        now = time.monotonic()
        try:
            messages = process.channel.arrived()
        except ClosedError:
            process.closed_at = now
            return
        for message in messages:
            if message[0] == "up":
                with contextlib.suppress(OSError):
                    process.handle = os.pidfd_open(message[1])
            self._obey(act_on(message, number, self._health, self._events, now))

    def _bury(self) -> None:
        """Processes whose channel is closed have ended; the nursery says how, within a short time."""
        now = time.monotonic()
        for number, process in list(self._processes.items()):
            if process.closed_at is not None and (
                process.how or self._failure is not None or now - process.closed_at > _CAUSE_SECONDS
            ):
                ended = self._health.has_ended(
                    number, process.how or self._failure or "it ended, and how is not known", now
                )
                process.release()
                del self._processes[number]
                if ended is not None:
                    self._events.append(ended)

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                self._start(order.process)
            elif isinstance(order, Kill) and (process := self._processes.get(order.process)) is not None:
                if process.handle is not None:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(process.handle, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    process.channel.end.shutdown(socket.SHUT_RDWR)  # both sides see the end
                process.closed_at = time.monotonic()

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._processes[number] = _Process(ours)
            try:
                socket.send_fds(self._control, [str(number).encode()], [theirs.fileno()])
            except OSError:
                self._processes[number].closed_at = time.monotonic()


def _absolute(entries: list[str]) -> list[str]:
    return [str(Path(entry).absolute()) for entry in entries]


def _feed(nursery: subprocess.Popen[bytes], recipe: bytes) -> None:
    assert nursery.stdin is not None
    with contextlib.suppress(OSError), nursery.stdin:  # it ended early: the control socket says so
        nursery.stdin.write(recipe)


def _serve(reference: weakref.ref[HostFleet], control: socket.socket, processes: dict[int, _Process]) -> None:
    """The thread: it holds the fleet for one turn at a time, so that it can be garbage-collected."""
    while (fleet := reference()) is not None and fleet.turn():
        del fleet
    control.close()
    for process in processes.values():
        process.release()


def _end(nursery: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    """End the nursery, which ends its processes, the stopped ones too."""
    if os.getpid() != owner:  # in a forked copy of this process they are not its own
        return
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(subprocess.TimeoutExpired):
        nursery.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(nursery.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        nursery.wait(_END_SECONDS)
