"""A process of another machine, as a keeper starts it: it makes the object itself, and serves it as a fork does.

    driver ---- Ray ----> keeper ---- channel ----> this process

The keeper is the process that Ray starts. It passes bytes on, and says how this process has ended. So the first cause
of a death is known (a signal, an exit code), and nothing that this process computes keeps Ray's own threads waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch

from oncurve.base.errors import ConfigError
from oncurve.base.imports import import_file, imported_files
from oncurve.processes.fleets.channel import Channel, pickled
from oncurve.processes.fleets.nursery import explained, serve
from oncurve.processes.fleets.shared import Pieces, pieces_of

_PR_SET_PDEATHSIG = 1
_SEND_SECONDS = 600.0

BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from oncurve.processes.fleets.kept import main; main(int(sys.argv[2]))"
)


def recipe_of(make: Callable[[], Any], mixed: bool = False, gpu: str = "") -> bytes:
    """What a process needs to make the object, on a machine that has none of this one's files but the packages.

    mixed   whether it may have other versions than this process
    gpu     the model of its GPU, as this process has it; "": it has none, or leaves it alone
    """
    files = [(name, file, Path(file).read_text()) for name, file in _imported()]
    path = [str(Path(entry).absolute()) for entry in sys.path]
    recipe = {"path": path, "files": files, "versions": _versions() | ({"GPU": gpu} if gpu else {}), "mixed": mixed}
    recipe["make"] = pickled(make)
    return bytes(cloudpickle.dumps(recipe))


class StoredBytes:
    """`pieces` in Ray's object store. Pickled, it becomes the list of the pieces where a keeper has them in memory.

    Each piece may be overwritten as soon as the next one is asked for. Raises OSError: there is no room.
    """

    def __init__(self, ray: Any, pieces: Iterable[memoryview]) -> None:
        self.token = secrets.token_hex(8)
        self.references: list[Any] = []
        self._lengths: list[int] = []
        try:
            for piece in pieces:
                self.references.append(ray.put(np.frombuffer(piece, dtype=np.uint8)))
                self._lengths.append(len(piece))
        except ray.exceptions.RayError as error:
            raise OSError(str(error).partition("\n")[0]) from error

    def __reduce__(self) -> tuple[Callable[..., Pieces], tuple[str, list[int]]]:
        return _arrived, (self.token, self._lengths)


def _arrived(number: str, lengths: list[int]) -> Pieces:
    """The pieces in the keeper's descriptor of this number; none where it has others by now."""
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/{int(number)}", os.O_RDONLY)
    except OSError:
        return []
    try:
        return pieces_of(descriptor, lengths) if os.fstat(descriptor).st_size == sum(lengths) > 0 else []
    finally:
        os.close(descriptor)


def main(descriptor: int) -> NoReturn:
    """Make the object of the recipe on standard input, and serve it on the socket `descriptor`."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        torch.set_num_threads(1)  # as in the nursery of a host
        made, other = _made()
    except BaseException as error:
        Channel(end, _SEND_SECONDS).send(("unmade", explained(error)))
        os._exit(1)
    serve(made, end, other)


def _made() -> tuple[Any, str]:
    """The object, and what this machine has in other versions than the run; empty: nothing."""
    recipe = cloudpickle.load(sys.stdin.buffer)
    sys.path += [entry for entry in recipe["path"] if entry not in sys.path and Path(entry).exists()]
    here = _versions() | ({"GPU": _gpu()} if "GPU" in recipe["versions"] else {})
    other = ", ".join(
        f"{name} {here[name]}, and the run has {expected}"
        for name, expected in recipe["versions"].items()
        if here[name] != expected
    )
    other = f"{socket.gethostname()} has {other}" if other else ""
    if other and not recipe["mixed"]:
        raise ConfigError(
            f"{other}: their bits may differ; use the same version there, or, for kernels, the same "
            "ATEN_CPU_CAPABILITY for the run; for workers alone cluster.mixed=true accepts it, and is not exact"
        )
    for name, file, source in recipe["files"]:
        if Path(file).is_file():
            import_file(file)
        else:
            _import_source(name, file, source)
    return cloudpickle.loads(recipe["make"])(), other


def _imported() -> list[tuple[str, str]]:
    """The modules that were imported from files of the user, by name."""
    names = {str(module.__file__): name for name, module in list(sys.modules.items()) if hasattr(module, "__file__")}
    return [(names[file], file) for file in imported_files()]


def _import_source(name: str, file: str, source: str) -> None:
    """The module under the name that it has where its file is."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(file).name
        copy.write_text(source)
        spec = importlib.util.spec_from_file_location(name, copy)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _versions() -> dict[str, str]:
    """What bits depend on in a process, in addition to its threads: versions, and the instructions that torch uses."""
    return {
        "torch": torch.__version__,
        "oncurve": version("oncurve"),
        "kernels for": torch.backends.cpu.get_cpu_capability(),
    }


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _end_with(keeper: int) -> None:
    """End when the keeper has ended, also while the object is being made."""
    waiting = threading.Event()
    while os.getppid() == keeper:
        waiting.wait(1.0)
    os._exit(0)
