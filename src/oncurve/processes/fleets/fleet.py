"""Fleets of processes that hold an object each.

    fleet.up()                                 the processes that can be called
    handle = fleet.put(pieces)                 bytes for several processes, as an argument of their calls
    number = fleet.call(process, "name", ...)  call a method of a process's object; calls are done in order
    for event in fleet.wait(seconds): ...      Replied, Failed or ProcessEnded, as they come
    fleet.kill(process, cause)                 end it; another takes its place

A fleet has *places*. The process of a place that ended is replaced, at once the first time and later after a pause; a
place whose processes end again and again is put in quarantine: it stays empty for a minute, the next time for two, and
so on up to a limit. A process is a number that is never used again, so that nothing which an earlier process of the
same place has said passes for the present one's.

`Health` decides what is started and ended, and a `Spawner` does it: on this machine, or on those of a Ray cluster.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, TrainingError
from oncurve.parallel import Meeting
from oncurve.processes.fleets.health import START_SECONDS, Health, ListeningClock, Order, ProcessEnded, Start
from oncurve.processes.fleets.host_fleet import HostSpawner
from oncurve.processes.fleets.ray_fleet import RaySpawner
from oncurve.processes.fleets.serving import pickled
from oncurve.processes.spawn import in_a_line

_TURN_SECONDS, _THREAD_SECONDS = 0.25, 60.0


@dataclass(frozen=True)
class Replied:
    """Call `number` of `process` has returned `value`."""

    process: int
    number: int
    value: Any


@dataclass(frozen=True)
class Failed:
    """Call `number` of `process` has raised. It ends, unless that was only because another process was lost."""

    process: int
    number: int
    message: str


Spawner = HostSpawner | RaySpawner
"""The part that starts the processes of a fleet, talks to them, and notices their end. It does not refer to the fleet.

All its methods but `wait` and `put` are called under the fleet's lock, and return at once.
"""

Event = Replied | Failed | ProcessEnded


class Fleet(Closing):
    """`places` processes, each with an object. No method waits without a limit.

    silence_seconds  a process that says nothing for so long is killed and replaced

    The processes start in the background. They end with `close()`, when the fleet is garbage-collected, and when this
    process dies, however it dies. A thread serves them, also while the training thread computes or waits for a rank.
    `up`, `settled` and `wait` raise TrainingError where no process can be reached any more, and none will be.
    """

    def __init__(self, spawner: Spawner, places: int, silence_seconds: float) -> None:
        self._spawner = spawner
        self._health = Health(places, silence_seconds, START_SECONDS)
        self._clock = ListeningClock()
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()  # guards all of it, and the spawner
        self._numbers = 0
        self._failed: TrainingError | None = None
        self._over = threading.Event()
        thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._over), daemon=True)
        self._end = weakref.finalize(self, _end, self._over, thread, spawner, os.getpid())
        thread.start()

    def up(self) -> list[int]:
        """Return the processes that can be called, by their places."""
        with self._changed:
            self._require()
            return self._health.up

    def settled(self, seconds: float) -> list[int]:
        """Return `up()`, as soon as no process is about to start; after so many `seconds` in any case.

        Raises ConfigError: the first processes cannot start.
        """
        with self._changed:
            self._changed.wait_for(self._is_settled, seconds)
            self._require()
            if self._spawner.failure is not None:
                raise ConfigError(f"cluster.kind: the processes cannot start: {self._spawner.failure}")
            return self._health.up

    def _is_settled(self) -> bool:
        failed = self._spawner.failure is not None or self._failed is not None
        return failed or not self._spawner.soon(self._health.starting)

    @property
    def quarantined(self) -> bool:
        """Return whether every place is in quarantine: no process is up, and none will be soon."""
        with self._changed:
            return self._spawner.quarantined or self._health.quarantined

    def put(self, pieces: Iterable[memoryview]) -> Any:
        """Return a handle of these bytes, which are copied once per machine. Given to `call` as an argument, it arrives
        at the method as the list of the pieces, read-only. They are freed when the handle is garbage-collected. A
        process that is given another handle has answered the calls that had the one before.

        Each piece may be overwritten when the next one is asked for. Raises OSError: there is no room for them.
        """
        return self._spawner.put(pieces)

    def call(self, process: int, method: str, *arguments: Any) -> int:
        """Call a method of the object of `process`; the number of the call. A process that has ended answers nothing,
        and an `ProcessEnded` of it comes, or has come."""
        with self._changed:
            self._numbers += 1
            number = self._numbers
        data = pickled((number, method, arguments))
        with self._changed:
            self._spawner.send(process, arguments, data)
        return number

    def wait(self, seconds: float) -> list[Event]:
        """Return what has happened since the last call, in order; after so many `seconds` perhaps nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._failed is not None, seconds)
            self._require()
            found = list(self._events)
            self._events.clear()
            return found

    def kill(self, process: int, cause: str) -> None:
        """End a process because of `cause`; another takes its place."""
        with self._changed:
            self._obey(self._health.condemn(process, cause))

    def meeting(self) -> Meeting:
        """Return a new place where this process and those of the fleet can find each other. Raises LostRankError."""
        return self._spawner.meeting()

    def close(self) -> None:
        """End all processes. Twice is allowed."""
        self._end()

    def turn(self) -> None:
        """One round of the thread: wait shortly for something to read, and act on it.

        What the processes have said is read before their silence is measured.
        """
        ready: Any = self._spawner.wait(_TURN_SECONDS)
        with self._changed:
            if self._over.is_set():
                return
            self._clock.turn()
            now = self._clock.now
            for process, message in self._spawner.news(ready, now):
                self._hear(process, message, now)
            for process in self._spawner.queued():
                self._health.is_queued(process, now)
            self._obey(self._health.orders(now))
            self._changed.notify_all()

    def _hear(self, process: int, message: tuple[Any, ...], now: float) -> None:
        self._health.heard(process, now)
        match message:
            case ("up", *_):
                self._health.is_up(process, now)
            case ("replied", call, value):
                self._events.append(Replied(process, call, value))
            case ("failed", call, words, lost):
                self._events.append(Failed(process, call, words))
                self._obey([] if lost else self._health.condemn(process, words))
            case ("ended", cause):
                if (ended := self._health.has_ended(process, cause, now)) is not None:
                    self._events.append(ended)

    def _obey(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                self._spawner.start(order.process, order.place)
            else:
                self._spawner.kill(order.process)

    def fail(self, error: Exception) -> None:
        """Note why the thread has ended: no process is served any more."""
        with self._changed:
            self._failed = TrainingError(f"the other processes cannot be served any more: {in_a_line(error)}")
            self._changed.notify_all()

    def _require(self) -> None:
        if self._failed is not None:
            raise self._failed


class HostFleet(Fleet):
    """`places` processes of this machine, each with the object that `make()` returns in the nursery.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced
    gpus             CUDA_VISIBLE_DEVICES of the process in each place; empty: of none
    """

    def __init__(
        self, make: Callable[[], Any], places: int, silence_seconds: float = 20.0, gpus: Sequence[str] = ()
    ) -> None:
        super().__init__(HostSpawner(make, silence_seconds, gpus), places, silence_seconds)


class RayFleet(Fleet):
    """`places` processes on the machines of a Ray cluster, each with the object that `make()` returns there.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced
    address          `host:port` of a running Ray, of which this machine is a node; "": a Ray of this run, here
    threads          of a process: as many processors are asked for, of a running Ray
    gpus             those of this machine, of which this process computes on the first; None: on processors
    each             GPUs of each process

    The processes start on machines that join later too.

    Raises ConfigError: Ray is not installed, or does not answer at `address`.
    """

    def __init__(self, make: Callable[[], Any], places: int, silence_seconds: float = 20.0, **settings: Any) -> None:
        super().__init__(RaySpawner(make, **settings), places, silence_seconds)


def _serve(reference: weakref.ref[Fleet], over: threading.Event) -> None:
    """The thread: it holds the fleet for one turn at a time, so that it can be garbage-collected."""
    while not over.is_set() and (fleet := reference()) is not None:
        try:
            fleet.turn()
        except Exception as error:
            fleet.fail(error)
            return
        del fleet


def _end(over: threading.Event, thread: threading.Thread, spawner: Spawner, owner: int) -> None:
    """End the thread, which may be starting something, and then all processes."""
    over.set()
    if os.getpid() == owner:  # in a forked copy of this process they are not its own
        spawner.wake()
        if thread.is_alive() and thread is not threading.current_thread():  # garbage is collected in any thread
            thread.join(_THREAD_SECONDS)
        spawner.close()
