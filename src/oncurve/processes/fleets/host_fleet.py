"""A fleet of processes on this machine, forked from a nursery.

No file and no port has a name that others could connect to.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import cloudpickle

from oncurve.base.errors import ConfigError
from oncurve.parallel import FileMeeting
from oncurve.processes.fleets.fleet import START_SECONDS, Fleet, Message
from oncurve.processes.fleets.health import DEATHS, Health, Start
from oncurve.processes.fleets.nursery import HostNursery
from oncurve.processes.fleets.serving import SEND_SECONDS, Channel, ClosedError, recipe_of
from oncurve.processes.shared import SharedBytes

_CAUSE_SECONDS = 2.0
_END_SECONDS = 5.0


class HostFleet(Fleet):
    """`places` processes of this machine, each with the object that `make()` returns in the nursery.

    make             is pickled at once, with all that it holds; the object's `begin()` is called in every process
    silence_seconds  a process that says nothing for so long is killed and replaced
    gpus             CUDA_VISIBLE_DEVICES of the process in each place; empty: of none
    """

    def __init__(
        self, make: Callable[[], Any], places: int, silence_seconds: float = 20.0, gpus: Sequence[str] = ()
    ) -> None:
        super().__init__(_HostSpawner(make, silence_seconds, gpus), places, silence_seconds)


class _Process:
    """A process that was started, as the fleet sees it. Its `handle` is known once it has spoken."""

    def __init__(self, end: socket.socket) -> None:
        self.channel = Channel(end, SEND_SECONDS)
        self._to_send = SimpleQueue[bytes | None]()
        self._sender = threading.Thread(target=self._send_all, daemon=True)  # the end of this process does not wait
        self._sender.start()
        self.handle: int | None = None
        self.closed_at: float | None = None
        self.how = ""

    def _send_all(self) -> None:
        with contextlib.suppress(ClosedError):
            while (data := self._to_send.get()) is not None:
                self.channel.send_pickled(data)

    def release(self) -> None:
        """Close what this process holds of it."""
        with contextlib.suppress(OSError):
            self.channel.end.shutdown(socket.SHUT_RDWR)  # a send that waits ends with an error
        self._to_send.put(None)
        self._sender.join(_END_SECONDS)
        self.channel.end.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class _HostSpawner:
    """The nursery, its processes, and the sockets to them. Where the nursery ends it is replaced, as `Health` says."""

    def __init__(self, make: Callable[[], Any], silence_seconds: float, gpus: Sequence[str]) -> None:
        self._recipe, self._gpus = _recipe(make), gpus
        self._nurseries, self._nursery = Health(1, silence_seconds, START_SECONDS), list[HostNursery]()
        self._which = -1
        self._processes: dict[int, _Process] = {}
        self._asked: dict[int, int] = {}  # processes to be forked, and their places
        self.failure: str | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="oncurve-ranks-"))
        self._meetings = self._unborn = 0  # nurseries that have ended before any was ready
        self._ready = self._over = False
        self._now = 0.0
        self._order_nursery()

    @property
    def quarantined(self) -> bool:
        """Return whether no nursery is started for a while."""
        return self._nurseries.quarantined

    def soon(self, starting: bool) -> bool:
        """Return whether the nursery starts, or is there while processes are `starting`."""
        return self._nurseries.starting or (bool(self._nurseries.up) and starting)

    def start(self, process: int, place: int) -> None:
        """Have a process forked as soon as the nursery takes another order."""
        self._asked[process] = place
        self._fork()

    def queued(self) -> Iterable[int]:
        """Return the processes that are not forked yet."""
        return list(self._asked)

    def send(self, process: int, arguments: tuple[Any, ...], data: bytes) -> None:
        """Send a call soon; a channel that is shut down loses it, which its reader notices."""
        if (found := self._processes.get(process)) is not None:
            found._to_send.put(data)

    def kill(self, number: int) -> None:
        """End a process at once, or do not fork it."""
        if (process := self._processes.get(number)) is not None:
            if process.handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process.handle, signal.SIGKILL)
            with contextlib.suppress(OSError):
                process.channel.end.shutdown(socket.SHUT_RDWR)  # both sides see the end
            process.closed_at = self._now

    def wait(self, seconds: float) -> list[int | None]:
        """Wait for something to read; return the numbers of the processes, and None for the nursery."""
        watched = {number: each.channel.end for number, each in self._processes.items() if each.closed_at is None}
        with selectors.PollSelector() as selector:
            for nursery in self._nursery:
                selector.register(nursery.control, selectors.EVENT_READ, None)
            for number, end in watched.items():
                selector.register(end, selectors.EVENT_READ, number)
            return [key.data for key, _ in selector.select(seconds)]

    def news(self, ready: list[int | None], now: float) -> Iterator[Message]:
        """Return what the processes have said, and which have ended; start what can be started."""
        self._now = now
        for number in ready:
            if number is None:
                for words in (nursery := self._nursery[0]).heard():
                    self._hear_nursery(nursery, words)
            else:
                yield from self._said(number)
        yield from self._buried()
        self._order_nursery()
        self._fork()

    def put(self, pieces: Iterable[memoryview]) -> SharedBytes:
        """Return a handle of these bytes in shared memory. Raises OSError: there is no room for them."""
        return SharedBytes(pieces)

    def meeting(self) -> FileMeeting:
        """Return a file of this machine, in a folder that ends with the fleet, also where its process is killed.

        Raises ConfigError: others may write to that folder.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)  # what clears old files away may have removed it
        if (found := self._folder.lstat()).st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigError(f"cluster.kind: {self._folder}, where the ranks meet, is not this user's alone")
        self._meetings += 1
        return FileMeeting(self._folder / f"world-{self._meetings}")

    def wake(self) -> None:
        """Have the nursery end its processes, the stopped ones too."""
        self._over = True
        for nursery in list(self._nursery):
            nursery.shut()

    def close(self) -> None:
        """End the nursery, which removes the folder, and is killed where it takes long."""
        for nursery in self._nursery:
            nursery.shut()
            nursery.bury(_END_SECONDS)
        for process in self._processes.values():
            process.release()
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._recipe.close()

    def _order_nursery(self) -> None:
        for order in self._nurseries.orders(self._now) if self.failure is None and not self._over else []:
            if isinstance(order, Start):
                self._which = order.process
                self._nursery.append(HostNursery(self._recipe, self._folder, bool(self._gpus)))
            else:
                self._nursery[0].kill()
                self.failure = None if self._ready else order.cause  # what is slow to load once is so again

    def _hear_nursery(self, nursery: HostNursery, words: list[str]) -> None:
        self._nurseries.heard(self._which, self._now)
        match words:
            case ["ready"]:
                self._ready = True
                self._nurseries.is_up(self._which, self._now)
            case ["ended", number, how]:
                if (process := self._processes.get(int(number))) is not None:
                    process.how = how
            case ["failed", why]:
                self._nurseries.condemn(self._which, why)
                self.failure = None if self._ready else why
            case [] if not self._over:  # else its end is the fleet's
                self._lost_nursery(nursery)

    def _lost_nursery(self, nursery: HostNursery) -> None:
        """Its processes have ended with it; another one is started."""
        self._nursery.clear()
        ended = self._nurseries.has_ended(self._which, nursery.bury(), self._now)
        cause = ended.cause if ended is not None else ""
        for process in self._processes.values():
            process.how = process.how or f"the process that forks them was lost: {cause}"
            process.closed_at = process.closed_at or self._now
        self._unborn += not self._ready
        if self._unborn == DEATHS:
            self.failure = self.failure or f"the process that forks them has ended {DEATHS} times at its start: {cause}"

    def _said(self, number: int) -> Iterator[Message]:
        process = self._processes[number]
        try:
            messages = process.channel.arrived()
        except ClosedError:
            process.closed_at = self._now
            return
        for message in messages:
            if message[0] == "up":
                with contextlib.suppress(OSError):
                    process.handle = os.pidfd_open(message[1])
            yield number, message

    def _buried(self) -> Iterator[Message]:
        """Processes whose channel is closed have ended; the nursery says how, within a short time."""
        for number, process in list(self._processes.items()):
            if process.closed_at is not None and (process.how or self._now - process.closed_at > _CAUSE_SECONDS):
                process.release()
                del self._processes[number]
                yield number, ("ended", process.how or "it ended, and how is not known")

    def _fork(self) -> None:
        """Have the nursery fork what is asked for, as far as it takes orders now: waiting for it could wait for ever,
        because it waits for its own messages to be read here."""
        while self._asked and self._nurseries.up:
            number, place = next(iter(self._asked.items()))
            try:
                gpus = self._gpus[place] if self._gpus else ""
                self._processes[number] = _Process(self._nursery[0].fork(number, gpus))
            except (BlockingIOError, ConnectionError):  # it has enough to do for now, or has ended
                return
            del self._asked[number]


def _recipe(make: Callable[[], Any]) -> IO[bytes]:
    """Return the object's recipe in a file without a name, which each nursery reads. Raises ConfigError: it has no
    room.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the fleet is closed
    try:
        cloudpickle.dump(recipe_of(make), file)
        file.flush()
    except OSError as error:
        file.close()
        raise ConfigError(
            f"cluster.kind: what its processes begin with cannot be written to {tempfile.gettempdir()}: "
            f"{error.strerror}; make room there, or set TMPDIR to another folder"
        ) from error
    return file
