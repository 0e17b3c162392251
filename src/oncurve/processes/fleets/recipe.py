"""The recipe by which a fleet's process makes its object, on this machine or on another.

Another machine may have none of this one's files but the packages.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch

from oncurve.base.errors import ConfigError
from oncurve.base.imports import import_file, imported_files
from oncurve.processes.fleets.channel import pickled


def recipe_of(make: Callable[[], Any], gpu: str = "") -> dict[str, Any]:
    """Return what a process needs to call `make`, which is pickled at once.

    gpu     the model of its GPU, as this process has it; "": it has none, or leaves it alone
    """
    files = [(name, file, Path(file).read_text()) for name, file in _imported()]
    path = [str(Path(entry).absolute()) for entry in sys.path]
    versions = _versions() | ({"GPU": gpu} if gpu else {})
    return {"path": path, "files": files, "versions": versions, "make": pickled(make)}


def made_here() -> Any:
    """Return the object of the recipe on standard input. Raises ConfigError: this machine has other versions."""
    torch.set_num_threads(1)  # threads do not survive a fork
    recipe = cloudpickle.load(sys.stdin.buffer)
    sys.path[:] = dict.fromkeys([*filter(os.path.exists, recipe["path"]), *sys.path])
    here = _versions() | ({"GPU": _gpu()} if "GPU" in recipe["versions"] else {})
    other = ", ".join(
        f"{name} {here[name]}, and the run has {expected}"
        for name, expected in recipe["versions"].items()
        if here[name] != expected
    )
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


def _imported() -> list[tuple[str, str]]:
    """Return the modules that were imported from files of the user, by name."""
    names = {str(module.__file__): name for name, module in list(sys.modules.items()) if hasattr(module, "__file__")}
    return [(names[file], file) for file in imported_files()]


def _import_source(name: str, file: str, source: str) -> None:
    """The module under the name that it has where its file is."""

    class Sent(SourceFileLoader):
        def get_data(self, path: str) -> bytes:
            return source.encode()

    module = sys.modules[name] = ModuleType(name)
    module.__file__ = file
    Sent(name, file).exec_module(module)


def _versions() -> dict[str, str]:
    """Return what bits depend on in addition to threads: versions, and the instructions that torch uses."""
    return {
        "torch": torch.__version__,
        "oncurve": version("oncurve"),
        "kernels for": torch.backends.cpu.get_cpu_capability(),
    }


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
