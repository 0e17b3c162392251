"""Messages between a fleet and its processes, and the side of a process: make its object by a recipe, do the calls that
come, and say that it lives.

Messages are pickled objects over a socket, each with its length before it. Both ends are oncurve's own processes on one
machine, connected by a pair of sockets that has no name, so that no other process can write to it.

The machine may have none of the files of the one that wrote the recipe but the packages. One thread does the calls in
order, one takes them, and one sends heartbeats every second.
"""

import io
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import version
from importlib.util import module_from_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import cloudpickle
import torch
from torch import Tensor

from oncurve.base.errors import ConfigError, OncurveError
from oncurve.base.imports import import_file, imported_files
from oncurve.base.output import complain
from oncurve.parallel import LostRankError
from oncurve.processes.spawn import end_with, in_a_line, last_words, unblock

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20


class ClosedError(Exception):
    """The other end is closed, or takes nothing within the limit."""


class ProcessorPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as tensors of a processor: the process that reads them may have no GPU, or another."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is pickled."""
        if type(obj) is Tensor and obj.device.type not in ("cpu", "meta"):
            return obj.detach().cpu().__reduce_ex__(2)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def pickled(message: Any, pickler: type[ProcessorPickler] = ProcessorPickler) -> bytes:
    """Return a message as bytes. Its tensors are on a processor when they are read."""
    file = io.BytesIO()
    pickler(file).dump(message)
    return file.getvalue()


def framed(data: bytes) -> bytes:
    """Return a pickled message with its length before it."""
    return bytes(_LENGTH.pack(len(data)) + data)


class Frames:
    """The messages in bytes that come piece by piece, as they become complete."""

    def __init__(self) -> None:
        self._read = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that are complete with `data`, the next bytes."""
        self._read += data
        found = []
        while len(self._read) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._read)
            end = _LENGTH.size + length
            if len(self._read) < end:
                break
            found.append(cloudpickle.loads(bytes(self._read[_LENGTH.size : end])))
            del self._read[:end]
        return found


class Channel:
    """One end. Several threads may send; one receives."""

    def __init__(self, end: socket.socket, seconds: float) -> None:
        """`seconds`: the limit of a send, and of the rest of a message whose beginning has come."""
        self.end = end
        end.settimeout(seconds)
        self._sending = threading.Lock()
        self._frames = Frames()

    def send(self, message: Any) -> None:
        """Send `message`. Raises ClosedError."""
        self.send_pickled(pickled(message))

    def send_pickled(self, data: bytes) -> None:
        """Send a message that is pickled already. Raises ClosedError."""
        try:
            with self._sending:
                self.end.sendall(_LENGTH.pack(len(data)))
                self.end.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def arrived(self) -> list[Any]:
        """Return the messages that are complete after one read, to be called where there is something to read.

        Raises ClosedError: the other end is closed.
        """
        try:
            data = self.end.recv(_PIECE)
        except TimeoutError:
            return []
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not data:
            raise ClosedError("the other end is closed")
        return self._frames.feed(data)


def recipe_of(make: Callable[[], Any], gpu: str = "") -> dict[str, Any]:
    """Return what a process needs to call `make`, which is pickled at once.

    gpu     the model of its GPU, as this process has it; "": it has none, or leaves it alone
    """
    files = [(name, file, Path(file).read_text()) for name, file in imported_files().items()]
    path = [str(Path(entry).absolute()) for entry in sys.path]
    versions = _versions() | ({"GPU": gpu} if gpu else {})
    return {"path": path, "files": files, "versions": versions, "make": pickled(make)}


def made_here() -> Any:
    """Return the object of the recipe on standard input. Raises ConfigError: this machine has other versions."""
    torch.set_num_threads(1)  # threads do not survive a fork
    recipe = cloudpickle.load(sys.stdin.buffer)
    sys.path[:] = dict.fromkeys([*filter(os.path.exists, recipe["path"]), *sys.path])
    run = recipe["versions"]
    gpu = torch.cuda.get_device_name() if "GPU" in run and torch.cuda.is_available() else "none"
    here = {**_versions(), "GPU": gpu}
    other = ", ".join(f"{name} {here[name]}, and the run has {run[name]}" for name in run if here[name] != run[name])
    if other:
        raise ConfigError(
            f"{socket.gethostname()} has {other}: their bits may differ; use the same version there, or, for kernels, "
            "the same ATEN_CPU_CAPABILITY for the run"
        )
    for name, file, source in recipe["files"]:
        if Path(file).is_file():
            import_file(file)
        else:
            _import_source(name, file, source)
    return cloudpickle.loads(recipe["make"])()


def _import_source(name: str, file: str, source: str) -> None:
    """The module under the name that it has where its file is."""

    class Sent(SourceFileLoader):
        def get_data(self, path: str) -> bytes:
            return source.encode()

    loader = Sent(name, file)
    module = sys.modules[name] = module_from_spec(ModuleSpec(name, loader, origin=file))
    module.__file__ = file
    loader.exec_module(module)


def _versions() -> dict[str, str]:
    """Return what bits depend on in addition to threads: versions, and the instructions that torch uses."""
    return {
        "torch": torch.__version__,
        "oncurve": version("oncurve"),
        "kernels for": torch.backends.cpu.get_cpu_capability(),
    }


BEAT_SECONDS = 1.0
SEND_SECONDS = 600.0
_TURN_SECONDS = 60.0


def main(descriptor: str, keeper: str) -> NoReturn:
    """Make the object of the recipe on standard input, and serve it on a socket with this descriptor.

    keeper   the process id of the keeper, with which this process ends
    """
    end_with(int(keeper))
    unblock()
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    try:
        made = made_here()
    except BaseException as error:
        Channel(end, SEND_SECONDS).send(("unmade", explained(error)))
        os._exit(1)
    serve(made, end)


def serve(made: Any, end: socket.socket) -> NoReturn:
    """Do the calls that come on the socket, in order, until it is closed. `made.begin()` is called first."""
    channel = Channel(end, SEND_SECONDS)
    calls: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_beat, args=(channel,), daemon=True).start()
    threading.Thread(target=_listen, args=(channel, calls), daemon=True).start()
    made.begin()
    channel.send(("up", os.getpid()))
    while True:
        try:
            number, method, arguments = calls.get(timeout=_TURN_SECONDS)
        except Empty:
            continue
        answer: tuple[Any, ...]
        try:
            answer = ("replied", number, getattr(made, method)(*arguments))
        except LostRankError as error:
            answer = ("failed", number, str(error), True)
        except BaseException as error:
            channel.send(("failed", number, explained(error), False))
            os._exit(1)  # it may have left something half done
        channel.send(answer)


def explained(error: BaseException) -> str:
    """Return what an error says, for a sentence of the run. Print where it began, unless it is raised on purpose."""
    if not isinstance(error, OncurveError):
        complain(last_words(error))
    return in_a_line(error)


def _beat(channel: Channel) -> None:
    """Say that this process lives, whatever its other thread does. A stopped process says nothing."""
    waiting = threading.Event()
    while True:
        try:
            channel.send(("beat",))
        except ClosedError:
            os._exit(0)
        waiting.wait(BEAT_SECONDS)


def _listen(channel: Channel, calls: SimpleQueue[Any]) -> None:
    """Put the calls that come into `calls`; end this process where the channel is closed."""
    while True:
        try:
            for message in channel.arrived():
                calls.put(message)
        except ClosedError:
            os._exit(0)  # also in the middle of a call: its result is of no use any more
