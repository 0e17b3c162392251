"""A fleet of processes on the machines of a Ray cluster. Ray is imported where a fleet is made (ray_session.py).

    driver ---- Ray ----> keeper ---- channel ----> process (kept.py)

Ray places and watches keepers, which are light: a keeper starts the process that computes, passes bytes between it and
the driver, and says how it has ended. `Health` decides what is started and killed, as for every fleet; what Ray itself
would start again is switched off. Calls are bytes in order, replies and heartbeats too: nothing that a process has half
done can pass for done. A keeper that cannot be reached, for however short a time, is ended: what it has received is not
known, and its work is done again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle

from oncurve.base.errors import ConfigError, TrainingError
from oncurve.base.output import urgent
from oncurve.parallel import LostRankError, NetworkMeeting, serve_meetings
from oncurve.processes.fleets.channel import Frames, framed
from oncurve.processes.fleets.devices import Gpus
from oncurve.processes.fleets.fleet import Health, Kill, Order, Start, WatchedFleet, act_on
from oncurve.processes.fleets.keeper import cause_of, keeper_class
from oncurve.processes.fleets.kept import StoredBytes
from oncurve.processes.fleets.ray_session import SESSION, Head
from oncurve.processes.fleets.recipe import recipe_of

START_SECONDS = 600.0
"""For importing everything and making the object, once Ray has found a machine for it."""

HEAD_SECONDS = 20.0
"""Without the first machine of a Ray cluster for so long, the run ends."""

ROOM_SECONDS = 30.0
"""A place for which Ray has found no machine after so long is not waited for; it is used when there is one."""

_TARGET = "oncurve.processes.fleets.kept:main"
_TURN_SECONDS = 0.25
_END_SECONDS = 5.0
_ENVIRONMENT = ("ONCURVE_", "ATEN_", "MKL_", "DNNL_", "ONEDNN_", "TORCH_")
"""Variables with these beginnings decide about bits or speed: a process has the driver's."""


@dataclass
class _Kept:
    """A keeper and its process, as the fleet sees them. `found_at`: when the keeper was there; `killed_at`: its end;
    `untaken`: numbers of calls that are not answered, and the tokens of stored bytes that they have."""

    keeper: Any
    asked_at: float
    frames: Frames = field(default_factory=Frames)
    found_at: float | None = None
    killed_at: float | None = None
    untaken: list[tuple[int, bytes]] = field(default_factory=list)

    def answered(self, call: int) -> None:
        """Calls are done in order: what this one had, and those before it, is taken."""
        self.untaken = [each for each in self.untaken if each[0] > call]


class RayFleet(WatchedFleet):
    """`places` processes on the machines of a Ray cluster, each with the object that `make()` returns there.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced
    address          `host:port` of a running Ray, of which this machine is a node; "": a Ray of this run, here
    threads          of a process: as many processors are asked for, of a running Ray
    mixed            whether processes may have other versions of torch than this one, or other kernels
    gpus             those of this machine, of which this process computes on the first; None: on processors
    each             GPUs of each process

    `Fleet` describes the methods. The processes start in the background, on machines that join
    later too. They end with `close()`, when the fleet is garbage-collected, and when this process dies.

    Raises ConfigError: Ray is not installed, or does not answer at `address`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        places: int,
        silence_seconds: float = 20.0,
        address: str = "",
        threads: int = 1,
        mixed: bool = False,
        gpus: Gpus | None = None,
        each: int = 0,
    ) -> None:
        gpu = gpus.names[0] if gpus is not None and gpus.device == "cuda" and each else ""
        recipe = cloudpickle.dumps(recipe_of(make, mixed, gpu))
        ray = SESSION.use(address, len(recipe))
        self._ray, self._own, self._head = ray, not address, Head(address)
        super().__init__(Health(places, silence_seconds, math.inf))  # of the start, `_late` decides
        self._processes: dict[int, _Kept] = {}
        self._inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._numbers = self._meetings = 0
        self._failure: str | None = None
        self._remarks: set[str] = set()
        self._server: Any = None
        self._begun = self._any_up = self._said_full = self._closed = False
        self._end = weakref.finalize(self, _end, ray, self._processes)
        environment = {key: value for key, value in os.environ.items() if key.startswith(_ENVIRONMENT)}
        if gpus is not None:
            try:
                SESSION.keep_gpu(gpus.entries[0])
            except ConfigError:
                self._end()  # now, and not when the error's traceback, which refers to this fleet, is forgotten
                raise
        stored = ray.put(recipe)
        actor = ray.remote(
            num_cpus=0 if self._own else threads,
            num_gpus=0 if gpus is None else each,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            concurrency_groups={"listening": 1},
        )(keeper_class())
        self._hire = functools.partial(actor.remote, _TARGET, str(Path(__file__).parents[3]), stored, environment)
        self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._inbox), daemon=True)
        self._thread.start()

    def settled(self, seconds: float) -> list[int]:
        """`up()`, as soon as no process is starting for which there is a machine; after so many `seconds` in any case.

        Raises ConfigError: the first processes could not make the object.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._gone is not None or self._is_settled(), seconds
            )
            self._require()
            if self._failure is not None and not self._any_up:
                raise ConfigError(f"cluster.kind: the processes cannot start: {self._failure}")
            return self._health.up

    def _is_settled(self) -> bool:
        if not self._begun or not self._health.starting:
            return self._begun
        up, now = set(self._health.up), self._clock.now
        starting = [kept for number, kept in self._processes.items() if number not in up]
        return bool(starting) and all(
            kept.found_at is None and kept.killed_at is None and now - kept.asked_at > ROOM_SECONDS for kept in starting
        )

    @property
    def quarantined(self) -> bool:
        """Whether every place is in quarantine: no process is up, and none will be soon."""
        with self._changed:
            return self._health.quarantined

    def put(self, pieces: Iterable[memoryview]) -> StoredBytes:
        """A handle of these bytes in Ray's object store. Raises OSError: there is no room for them."""
        return StoredBytes(self._ray, pieces)

    def call(self, process: int, method: str, *arguments: Any) -> int:
        """Call a method of the object of `process`; the number of the call."""
        with self._changed:
            self._numbers += 1
            number = self._numbers
        data = framed((number, method, arguments))
        stored = next((argument for argument in arguments if isinstance(argument, StoredBytes)), None)
        with self._changed:
            found = self._processes.get(process)
            if found is not None and found.killed_at is None:
                more: tuple[Any, ...] = ()
                if stored is not None:
                    token = stored.token.encode()
                    more = (token, tuple(each for _, each in found.untaken), *stored.references)
                    found.untaken.append((number, token))
                self._watch(process, lambda: found.keeper.send.remote(data, *more))
        return number

    def meeting(self) -> NetworkMeeting:
        """A number at a server of this process, which listens at the address that Ray has for this machine; for a Ray
        of this run, on the loopback device alone.

        Raises LostRankError: it cannot listen there.
        """
        host = "127.0.0.1" if self._own else str(self._ray.util.get_node_ip_address())
        try:
            self._server = self._server or serve_meetings(host)
        except OSError as error:
            raise LostRankError(f"this process cannot listen at {host}: {error}") from error
        self._meetings += 1
        return NetworkMeeting(host, self._server.port, self._meetings)

    def close(self) -> None:
        """End all processes. Twice is allowed."""
        with self._changed:
            self._closed = True
            self._end()
        self._inbox.put((-1, None))
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)
        self._processes.clear()
        self._server = None

    def turn(self, arrived: list[tuple[int, Any]]) -> bool:
        """One round of the thread: act on what has arrived, and on the time. False: the fleet is closed."""
        gone = self._head.silence() > HEAD_SECONDS
        with self._changed:
            if self._closed:
                return False
            if gone and self._gone is None:
                self._gone = TrainingError(
                    f"the Ray cluster at {self._head.address} has ended: its first machine has not answered for "
                    f"{HEAD_SECONDS:g} seconds. The run goes on with `oncurve resume` and its folder, with the "
                    "cluster.address of another Ray, or with cluster.kind=host"
                )
            self._clock.turn()
            for number, future in arrived:
                self._hear(number, future)
            self._bury()
            self._obey(self._health.orders(self._clock.now))
            self._begun = True
            self._changed.notify_all()
        return True

    def _hear(self, number: int, future: Any) -> None:
        """A keeper has answered, with bytes or with an error."""
        kept, now = self._processes.get(number), self._clock.now
        if kept is None:
            return
        error = future if isinstance(future, BaseException) else future.exception()
        if error is not None:
            self._has_ended(number, kept, cause_of(error), now)
            return
        answer = future.result(timeout=0)  # it is done
        if answer is None:
            return  # of `send`
        said, how = answer
        kept.found_at = kept.found_at or now
        for message in kept.frames.feed(said):
            if message[0] == "unmade":
                self._failure = how = message[1]
            elif kept.killed_at is None:
                if message[0] == "up":
                    self._any_up = True
                    self._remark(message[2])
                if message[0] in ("replied", "failed"):
                    kept.answered(message[1])
                self._obey(act_on(message, number, self._health, self._events, now))
        if how is not None:
            self._has_ended(number, kept, how, now)
        else:
            self._watch(number, lambda: kept.keeper.listen.options(concurrency_group="listening").remote())

    def _remark(self, remark: str) -> None:
        """Say once what a machine has in other versions."""
        if remark and remark not in self._remarks:
            self._remarks.add(remark)
            urgent(f"oncurve: {remark}: cluster.mixed accepts its completions, whose log-probs may differ")

    def _has_ended(self, number: int, kept: _Kept, cause: str, now: float) -> None:
        self._discharge(kept)
        del self._processes[number]
        ended = self._health.has_ended(number, cause, now)
        if ended is not None:
            self._events.append(ended)

    def _bury(self) -> None:
        """Those that were killed have ended, also where Ray says nothing; those that do not start are killed."""
        now = self._clock.now
        up = set(self._health.up)
        waiting = 0
        for number, kept in list(self._processes.items()):
            if kept.killed_at is not None:
                if now - kept.killed_at > _END_SECONDS:
                    self._has_ended(number, kept, "it was killed", now)
            elif number not in up and kept.found_at is not None and now - kept.found_at > START_SECONDS:
                self._obey(self._health.condemn(number, f"it did not start within {START_SECONDS:g} seconds"))
            elif kept.found_at is None and now - kept.asked_at > ROOM_SECONDS:
                waiting += 1
        if waiting and not self._said_full:
            count = f"{waiting} process{'es' * (waiting > 1)}"
            urgent(f"oncurve: the Ray cluster has no room for {count} yet; the run goes on, and takes what comes")
        self._said_full = waiting > 0

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                self._start(order.process)
            elif isinstance(order, Kill) and (kept := self._processes.get(order.process)) is not None:
                kept.killed_at = self._clock.now
                self._discharge(kept)

    def _start(self, number: int) -> None:
        kept = _Kept(None, self._clock.now)
        self._processes[number] = kept

        def hire() -> Any:
            kept.keeper = self._hire()
            return kept.keeper.listen.options(concurrency_group="listening").remote()

        self._watch(number, hire)

    def _watch(self, number: int, ask: Callable[[], Any]) -> None:
        """Have the answer to `ask()`, or its error, put into the inbox."""
        inbox = self._inbox
        try:
            ask().future().add_done_callback(lambda future: inbox.put((number, future)))
        except Exception as error:  # Ray's connection has ended
            inbox.put((number, error))

    def _discharge(self, kept: _Kept) -> None:
        if kept.keeper is not None:
            with contextlib.suppress(Exception):  # it has ended
                self._ray.kill(kept.keeper, no_restart=True)


def _serve(reference: weakref.ref[RayFleet], inbox: SimpleQueue[tuple[int, Any]]) -> None:
    """The thread: it holds the fleet for one turn at a time, so that it can be garbage-collected."""
    while True:
        arrived = []
        with contextlib.suppress(Empty):
            arrived.append(inbox.get(timeout=_TURN_SECONDS))
            while True:
                arrived.append(inbox.get_nowait())
        fleet = reference()
        if fleet is None or not fleet.turn(arrived):
            return
        del fleet


def _end(ray: Any, processes: dict[int, _Kept]) -> None:
    for kept in list(processes.values()):
        if kept.keeper is not None:
            with contextlib.suppress(Exception):  # it has ended, or Ray has
                ray.kill(kept.keeper, no_restart=True)
    SESSION.leave()
