"""A fleet of processes on the machines of a Ray cluster. Ray is imported where a fleet is made (ray_session.py).

    driver ---- Ray ----> keeper ---- channel ----> process (serving.py)

Ray places and watches keepers, which are light: a keeper starts the process that computes, passes bytes between it and
the driver, and says how it has ended. `Health` decides what is started and killed, as for every fleet; what Ray itself
would start again is switched off. Calls are bytes in order, replies and heartbeats too: nothing that a process has half
done can pass for done. A keeper that cannot be reached, for however short a time, is ended: what it has received is not
known, and its work is done again.
"""

import contextlib
import functools
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle

from oncurve.base.output import urgent
from oncurve.parallel import LostRankError, NetworkMeeting, serve_meetings
from oncurve.processes.fleets.devices import Gpus
from oncurve.processes.fleets.fleet import Fleet, Message
from oncurve.processes.fleets.ray_session import SESSION
from oncurve.processes.fleets.serving import Frames, framed, recipe_of
from oncurve.processes.shared import StoredBytes

ROOM_SECONDS = 30.0
"""A place for which Ray has found no machine after so long is not waited for; it is used when there is one."""

_TARGET = "oncurve.processes.fleets.serving:main"
_END_SECONDS = 5.0
_ENVIRONMENT = ("ONCURVE_", "ATEN_", "MKL_", "DNNL_", "ONEDNN_", "TORCH_")
"""Variables with these beginnings decide about bits or speed: a process has the driver's."""


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
        super().__init__(_RaySpawner(make, **settings), places, silence_seconds)


@dataclass
class _Keeper:
    """A keeper and its process, as the fleet sees them.

    found      whether the keeper is there
    killed_at  when it was killed
    """

    keeper: Any
    asked_at: float
    frames: Frames = field(default_factory=Frames)
    found: bool = False
    up: bool = False
    killed_at: float | None = None


class _RaySpawner:
    """The keepers, and what they answer."""

    quarantined = False

    def __init__(
        self, make: Callable[[], Any], address: str = "", threads: int = 1, gpus: Gpus | None = None, each: int = 0
    ) -> None:
        gpu = gpus.names[0] if gpus is not None and gpus.device == "cuda" and each else ""
        recipe = cloudpickle.dumps(recipe_of(make, gpu))
        ray = SESSION.use(address, len(recipe))
        self._ray, self._own = ray, not address
        self._processes: dict[int, _Keeper] = {}
        self._inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._meetings = 0
        self._unmade: str | None = None
        self._server: Any = None
        self._any_up = self._said_full = False
        self._now = 0.0
        environment = {key: value for key, value in os.environ.items() if key.startswith(_ENVIRONMENT)}
        if gpus is not None:
            SESSION.keep_gpu(gpus.entries[0])
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

    @property
    def failure(self) -> str | None:
        """Return why the first processes could not make the object."""
        return None if self._any_up else self._unmade

    def soon(self, starting: bool) -> bool:
        """Return whether processes are `starting`, and there is a machine for one of them."""
        waiting = [kept for kept in self._processes.values() if not kept.up]
        return starting and not (waiting and len(self._without_room()) == len(waiting))

    def queued(self) -> Iterable[int]:
        """Return the processes for which there is no machine yet."""
        return [number for number, kept in self._processes.items() if not kept.found]

    def _without_room(self) -> list[_Keeper]:
        sought = (kept for kept in self._processes.values() if not kept.found and kept.killed_at is None)
        return [kept for kept in sought if self._now - kept.asked_at > ROOM_SECONDS]

    def start(self, process: int, place: int) -> None:
        """Ask Ray for a keeper."""
        kept = _Keeper(None, self._now)
        self._processes[process] = kept

        def hire() -> Any:
            kept.keeper = self._hire()
            return kept.keeper.listen.options(concurrency_group="listening").remote()

        self._watch(process, hire)

    def send(self, process: int, arguments: tuple[Any, ...], data: bytes) -> None:
        """Send a call to the keeper."""
        found = self._processes.get(process)
        if found is None or found.killed_at is not None:
            return
        stored = next((argument for argument in arguments if isinstance(argument, StoredBytes)), None)
        more = () if stored is None else (stored.token.encode(), *stored.references)
        self._watch(process, lambda: found.keeper.send.remote(framed(data), *more))

    def kill(self, process: int) -> None:
        """End a keeper, and its process with it."""
        if (kept := self._processes.get(process)) is not None:
            kept.killed_at = self._now
            self._discharge(kept)

    def wait(self, seconds: float) -> list[tuple[int, Any]]:
        """Wait for answers of keepers."""
        arrived = []
        with contextlib.suppress(Empty):
            arrived.append(self._inbox.get(timeout=seconds))
            while True:
                arrived.append(self._inbox.get_nowait())
        return arrived

    def news(self, ready: list[tuple[int, Any]], now: float) -> Iterator[Message]:
        """Return what the keepers pass on. Those that were killed have ended, also where Ray says nothing."""
        self._now = now
        for number, future in ready:
            if (kept := self._processes.get(number)) is not None:
                yield from self._heard(number, kept, future)
        for number, kept in list(self._processes.items()):
            if kept.killed_at is not None and now - kept.killed_at > _END_SECONDS:
                yield self._ended(number, kept, "it was killed")
        waiting = len(self._without_room())
        if waiting and not self._said_full:
            count = f"{waiting} process{'es' * (waiting > 1)}"
            urgent(f"oncurve: the Ray cluster has no room for {count} yet; the run goes on, and takes what comes")
        self._said_full = waiting > 0

    def put(self, pieces: Iterable[memoryview]) -> StoredBytes:
        """Return a handle of these bytes in Ray's object store. Raises OSError: there is no room for them."""
        return StoredBytes(self._ray, pieces)

    def meeting(self) -> NetworkMeeting:
        """Return a number at a server of this process, which listens at the address that Ray has for this machine; for
        a Ray of this run, on the loopback device alone.

        Raises LostRankError: it cannot listen there.
        """
        host = "127.0.0.1" if self._own else str(self._ray.util.get_node_ip_address())
        try:
            self._server = self._server or serve_meetings(host)
        except OSError as error:
            raise LostRankError(f"this process cannot listen at {host}: {error}") from error
        self._meetings += 1
        return NetworkMeeting(host, self._server.port, self._meetings)

    def wake(self) -> None:
        """Make `wait` return."""
        self._inbox.put((-1, None))

    def close(self) -> None:
        """End all keepers."""
        for kept in self._processes.values():
            self._discharge(kept)
        self._processes.clear()
        self._server = None

    def _heard(self, number: int, kept: _Keeper, future: Any) -> Iterator[Message]:
        """Return a keeper has answered, with bytes or with an error."""
        error = future if isinstance(future, BaseException) else future.exception()
        if error is not None:
            yield self._ended(number, kept, cause_of(error))
            return
        answer = future.result(timeout=0)  # it is done
        if answer is None:
            return  # of `send`
        said, how = answer
        kept.found = True
        for message in kept.frames.feed(said):
            if message[0] == "unmade":
                self._unmade = how = message[1]
            elif kept.killed_at is None:
                if message[0] == "up":
                    kept.up = self._any_up = True
                yield number, message
        if how is not None:
            yield self._ended(number, kept, how)
        else:
            self._watch(number, lambda: kept.keeper.listen.options(concurrency_group="listening").remote())

    def _ended(self, number: int, kept: _Keeper, cause: str) -> Message:
        self._discharge(kept)
        del self._processes[number]
        return number, ("ended", cause)

    def _watch(self, number: int, ask: Callable[[], Any]) -> None:
        """Have the answer to `ask()`, or its error, put into the inbox."""
        inbox = self._inbox
        try:
            ask().future().add_done_callback(lambda future: inbox.put((number, future)))
        except Exception as error:  # Ray's connection has ended
            inbox.put((number, error))

    def _discharge(self, kept: _Keeper) -> None:
        if kept.keeper is not None:
            with contextlib.suppress(Exception):  # it has ended, or Ray has
                self._ray.kill(kept.keeper, no_restart=True)


def keeper_class() -> type:
    """Return the class of a keeper, defined here so that Ray sends it by value and its process imports no torch."""

    class Keeper:
        """Starts a process, passes bytes on, and says how the process has ended."""

        def __init__(self, target: str, source: str, recipe: bytes, environment: dict[str, str]) -> None:
            sys.path.append(source)
            from oncurve.processes.spawn import feed, start_python

            self.token, self.memory = b"", os.memfd_create("oncurve")
            self.end, theirs = socket.socketpair()
            self.end.settimeout(600.0)
            with theirs:
                self.child = start_python(
                    target,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                )
            feed(self.child, recipe)

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
