"""A fleet of processes on this machine, forked from a nursery.

A thread serves the processes: it reads what they say, starts and kills as `Health` orders, and so acts also while the
training thread computes or waits for a rank. No file and no port has a name that others could connect to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import cloudpickle

from oncurve.base.errors import ConfigError
from oncurve.base.output import urgent
from oncurve.parallel import FileMeeting
from oncurve.processes.fleets.channel import Channel, ClosedError, Sender
from oncurve.processes.fleets.fleet import Health, Order, Start, WatchedFleet, act_on
from oncurve.processes.fleets.host_nursery import HostNursery
from oncurve.processes.fleets.recipe import recipe_of
from oncurve.processes.shared import SharedBytes

START_SECONDS = 600.0
"""For importing everything and making the object; a fork of it takes milliseconds."""

_SEND_SECONDS = 600.0
_TURN_SECONDS = 0.25
_CAUSE_SECONDS = 2.0
_END_SECONDS, _THREAD_SECONDS = 5.0, 60.0


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


class HostFleet(WatchedFleet):
    """`places` processes of this machine, each with the object that `make()` returns in the nursery.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced
    gpus             CUDA_VISIBLE_DEVICES of the process in each place; empty: of none

    `Fleet` describes the methods. The processes start in the background. They end with `close()`,
    when the fleet is garbage-collected, and when this process dies, however it dies.
    """

    def __init__(
        self, make: Callable[[], Any], places: int, silence_seconds: float = 20.0, gpus: Sequence[str] = ()
    ) -> None:
        self._recipe, self._gpus = _recipe(make), gpus
        super().__init__(Health(places, silence_seconds, START_SECONDS))
        self._nurseries, self._nursery = Health(1, silence_seconds, START_SECONDS), list[HostNursery]()
        self._which = -1
        self._processes: dict[int, _Process] = {}
        self._asked: dict[int, Start] = {}  # processes to be forked as soon as the nursery takes another order
        self._numbers = 0
        self._failure: str | None = None
        self._folder = Path(tempfile.gettempdir()) / f"oncurve-ranks-{secrets.token_hex(8)}"
        self._meetings = 0
        self._ready = False
        self._over = threading.Event()
        thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._processes), daemon=True)
        self._end = weakref.finalize(
            self, _end, self._over, thread, self._nursery, self._recipe, self._folder, os.getpid()
        )
        self._order_nursery()
        thread.start()

    def settled(self, seconds: float) -> list[int]:
        """`up()`, as soon as no process is starting; after so many `seconds` in any case.

        Raises ConfigError: the nursery could not make the object.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not self._starting, seconds)
            if self._failure is not None:
                raise ConfigError(f"cluster.kind: the processes cannot start: {self._failure}")
            return self._health.up

    @property
    def quarantined(self) -> bool:
        """Whether every place is in quarantine: no process is up, and none will be soon."""
        with self._changed:
            return self._nurseries.quarantined or self._health.quarantined

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

    def meeting(self) -> FileMeeting:
        """A file of this machine, in a folder that ends with the fleet, also where its process is killed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._meetings += 1
        return FileMeeting(self._folder / f"world-{self._meetings}")

    def close(self) -> None:
        """End all processes. Twice is allowed."""
        self._end()
        for process in self._processes.values():
            process.release()
        self._processes.clear()

    @property
    def _starting(self) -> bool:
        return self._nurseries.starting or (bool(self._nurseries.up) and self._health.starting)

    def turn(self) -> bool:
        """One round of the thread: wait shortly for something to read, and act on it. False: the fleet is closed.

        What the processes have said is read before their silence is measured.
        """
        with self._changed:
            if not self._watching():
                return False
            watched = {number: process.channel.end for number, process in self._open()}
            control = self._nursery[0].control if self._nursery else None
        with selectors.DefaultSelector() as selector:
            if control is not None:
                selector.register(control, selectors.EVENT_READ, None)
            for number, end in watched.items():
                selector.register(end, selectors.EVENT_READ, number)
            ready = [key.data for key, _ in selector.select(_TURN_SECONDS)]
        with self._changed:
            if not self._watching():
                return False
            self._clock.turn()
            for number in ready:
                if number is None:
                    for words in (nursery := self._nursery[0]).heard():
                        self._hear_nursery(nursery, words)
                else:
                    self._hear(number, self._processes[number])
            self._bury()
            self._order_nursery()
            if self._nurseries.up:
                self._obey(self._health.orders(self._clock.now))
                self._fork()
            self._changed.notify_all()
        return True

    def _watching(self) -> bool:
        return not self._over.is_set()

    def _order_nursery(self) -> None:
        for order in self._nurseries.orders(self._clock.now) if self._failure is None and self._watching() else []:
            if isinstance(order, Start):
                self._which = order.process
                try:
                    self._nursery.append(HostNursery(self._recipe, self._folder, bool(self._gpus)))
                except OSError as error:
                    self._nurseries.has_ended(self._which, str(error), self._clock.now)
            else:
                self._nursery[0].kill()

    def _open(self) -> list[tuple[int, _Process]]:
        return [(number, process) for number, process in self._processes.items() if process.closed_at is None]

    def _hear_nursery(self, nursery: HostNursery, words: list[str]) -> None:
        now = self._clock.now
        self._nurseries.heard(self._which, now)
        match words:
            case ["ready"]:
                self._ready = True
                self._nurseries.is_up(self._which, now)
            case ["ended", number, how]:
                if (process := self._processes.get(int(number))) is not None:
                    process.how = how
            case ["failed", why]:
                self._nurseries.condemn(self._which, why)
                self._failure = None if self._ready else why
            case [] if self._watching():  # else its end is the fleet's
                self._lost_nursery(nursery, now)

    def _lost_nursery(self, nursery: HostNursery, now: float) -> None:
        """Its processes have ended with it; another one is started."""
        self._nursery.clear()
        ended = self._nurseries.has_ended(self._which, nursery.bury(), now)
        cause = ended.cause if ended is not None else ""
        for process in self._processes.values():
            process.how = process.how or f"the process that forks them was lost: {cause}"
            process.closed_at = process.closed_at or now
        if not self._ready:
            self._failure = self._failure or f"the process that forks them has ended: {cause}"
        elif ended is not None:
            urgent(f"oncurve: the process that forks others was lost: {cause}; another is started{ended.consequence}")

    def _hear(self, number: int, process: _Process) -> None:
        now = self._clock.now
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
        now = self._clock.now
        for number, process in list(self._processes.items()):
            if process.closed_at is not None and (process.how or now - process.closed_at > _CAUSE_SECONDS):
                ended = self._health.has_ended(number, process.how or "it ended, and how is not known", now)
                process.release()
                del self._processes[number]
                if ended is not None:
                    self._events.append(ended)

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                self._asked[order.process] = order
            elif order.process in self._asked:
                del self._asked[order.process]
                self._health.has_ended(order.process, "it was not forked", self._clock.now)
            elif (process := self._processes.get(order.process)) is not None:
                if process.handle is not None:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(process.handle, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    process.channel.end.shutdown(socket.SHUT_RDWR)  # both sides see the end
                process.closed_at = self._clock.now

    def _fork(self) -> None:
        """Have the nursery fork what is asked for, as far as it takes orders now: waiting for it could wait for ever,
        because it waits for its own messages to be read here."""
        while self._asked:
            number, order = next(iter(self._asked.items()))
            try:
                gpus = self._gpus[order.place] if self._gpus else ""
                self._processes[number] = _Process(self._nursery[0].fork(number, gpus))
            except BlockingIOError:
                return
            except OSError:
                self._health.has_ended(number, "it could not be forked", self._clock.now)
            del self._asked[number]


def _recipe(make: Callable[[], Any]) -> IO[bytes]:
    """The object's recipe in a file without a name, which each nursery reads. Raises ConfigError: it has no room."""
    recipe = recipe_of(make)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        try:
            cloudpickle.dump(recipe, file)
            file.flush()
        except OSError as error:
            raise ConfigError(
                f"cluster.kind: what its processes begin with cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror}; make room there, or set TMPDIR to another folder"
            ) from error
        stack.pop_all()  # it is open until the fleet is closed
        return file


def _serve(reference: weakref.ref[HostFleet], processes: dict[int, _Process]) -> None:
    """The thread: it holds the fleet for one turn at a time, so that it can be garbage-collected."""
    while (fleet := reference()) is not None and fleet.turn():
        del fleet
    for process in processes.values():
        process.release()


def _end(
    over: threading.Event,
    thread: threading.Thread,
    nurseries: list[HostNursery],
    recipe: IO[bytes],
    folder: Path,
    owner: int,
) -> None:
    """End the thread, which may be starting a nursery, and then the nursery, which ends its processes, the stopped ones
    too. The nursery removes the folder, and is killed where it takes long."""
    over.set()
    if os.getpid() == owner:  # in a forked copy of this process they are not its own
        for nursery in list(nurseries):
            nursery.shut()  # wakes the thread
        if thread.is_alive() and thread is not threading.current_thread():  # garbage is collected in any thread
            thread.join(_THREAD_SECONDS)
        for nursery in nurseries:
            nursery.end()
        shutil.rmtree(folder, ignore_errors=True)
        recipe.close()
