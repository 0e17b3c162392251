"""The `python` kind: a user's function, in a worker where possible."""

from __future__ import annotations

import base64
import inspect
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from pydantic import Field, JsonValue, model_validator

from oncurve.base.errors import ConfigError
from oncurve.rewards.functions.callables import Adapted
from oncurve.rewards.settings import InProcess, Runner, Split, WorkerSettings
from oncurve.steps import splitter_of


class Python(WorkerSettings):
    """A function of yours, with one of the three signatures of `oncurve.rewards.functions.callables`."""

    path: str | None = None
    """The function: "file.py:name" (relative to the recipe) or "module:name"; it is imported in workers only."""

    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments that every call of the function gets: `{ limit = 12 }`. A column of such a name is not
    passed."""

    split: Split = "newline"
    """Where the steps of a completion end, for a function that scores steps: "newline", a pattern between slashes
    ("/\\n\\n+/"), or a function of yours ("file.py:name")."""

    function: Any = Field(default=None, exclude=True, repr=False)
    """The function itself, in place of a path (Python API). A function that needs nothing of this process runs in
    workers too; a closure, or a function that uses this process's variables or torch, runs here and cannot be killed.
    """

    @model_validator(mode="after")
    def _one_of_two(self) -> Python:
        if (self.path is None) == (self.function is None):
            raise ValueError("give a path ('file.py:name' or 'module:name')")
        if self.function is not None and not callable(self.function):
            raise ValueError("the function must be callable")
        if self.path is not None and not all(self.path.rpartition(":")[::2]):
            file = self.path.rstrip(":")
            raise ValueError(f"path: {file!r} names no function; write '{file}:name'")
        return self

    @property
    def default_name(self) -> str:
        """The name of the function; "reward" for a lambda."""
        return name_of(self.function) if self.path is None else self.path.rpartition(":")[2]

    def start(self, base: Path | None) -> Runner:
        """Return workers for a path, or for a function that can be copied; else this process. Raises ConfigError."""
        settings: dict[str, Any] = {"base": str(base or Path.cwd()), "split": self.split, "kwargs": self.kwargs}
        settings["seconds"] = self.timeout_seconds
        if self.function is None:
            return self.workers("oncurve.rewards.functions.callables:served", {"path": self.path, **settings})
        adapted = Adapted(self.function, splitter_of(self.split, base), self.kwargs, self.timeout_seconds)
        reason = why_in_process(self.function)
        if reason is None:
            pickled = base64.b64encode(cloudpickle.dumps(self.function)).decode()
            pool = self.workers("oncurve.rewards.functions.callables:served", {"pickled": pickled, **settings})
            try:
                assert pool.about is not None
                return pool
            except ConfigError as error:  # only this process can import its module
                reason = f"a worker cannot load it ({str(error).strip().rpartition(chr(10))[2]})"
        return InProcess(adapted, adapted.accepts, reason)


def name_of(function: object) -> str:
    """Return the name of a function, or of the class of a callable; "reward" for a lambda."""
    function = getattr(function, "func", function)  # of a functools.partial
    name: str = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "reward"


def path_of(function: object) -> str | None:
    """Return `"/folder/file.py:name"` of a function at the top of a file that was imported; None for every other.

    The name in the file must mean this very function: not a closure, a lambda, a decorated or a redefined one, one of a
    notebook, of a script that runs (a worker would run it, too), of a package (whose files import each other), or one
    whose file has changed since.
    """
    if not isinstance(function, types.FunctionType) or "." in function.__module__ or function.__module__ == "__main__":
        return None
    module, name, code = sys.modules.get(function.__module__), function.__name__, function.__code__
    file = Path(getattr(module, "__file__", None) or "")
    if vars(module or object).get(name) is not function or file.suffix != ".py" or not file.is_file():
        return None
    try:
        whole = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
    return f"{file.absolute()}:{name}" if code in whole.co_consts else None


def why_in_process(function: Callable[..., Any]) -> str | None:
    """Return why a function must run in this process, or None if a copy of it in a worker computes the same.

    A copy has this process's variables as they are now, and its changes stay in the worker. So closures and functions
    that read changeable variables run here, and so do functions that use torch, on this process's tensors.
    """
    reason = _kept_here(function, set())
    if reason is not None:
        return reason
    try:
        payload = cloudpickle.dumps(function)
    except Exception as error:  # picklers raise anything
        return f"it cannot be pickled ({type(error).__name__})"
    return "it uses torch" if b"torch" in payload else None


_UNCHANGEABLE = (type(None), bool, int, float, complex, str, bytes, re.Pattern, range, type, types.ModuleType)


def _kept_here(value: Any, seen: set[int]) -> str | None:
    """Return the reason found in a function and in the functions that it reads, which cloudpickle copies by value."""
    if id(value) in seen or not isinstance(value, types.FunctionType):
        return None
    seen.add(id(value))
    if value.__closure__:
        return "it is a closure" if len(seen) == 1 else f"it calls the closure {value.__name__}"
    used = inspect.getclosurevars(value).globals if value.__module__ == "__main__" else {}
    for name, each in used.items():
        if reason := _kept_here(each, seen):
            return reason
        if not isinstance(each, types.FunctionType) and not _unchangeable(each):
            return f"it uses the variable {name}"
    return None


def _unchangeable(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_unchangeable(item) for item in value)
    return isinstance(value, (*_UNCHANGEABLE, types.BuiltinFunctionType))
