"""The `python` kind: a user's function, in a worker wherever that is possible."""

from __future__ import annotations

import base64
import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from pydantic import Field, field_validator, model_validator

from oncurve.errors import ConfigError
from oncurve.rewards.callables import Adapted
from oncurve.rewards.settings import InProcess, Runner, WorkerSettings
from oncurve.steps import splitter_of

__all__ = ["Python", "why_in_process"]


class Python(WorkerSettings):
    """A function of yours; see `oncurve.rewards.callables` for the three signatures.

    path       "file.py:name" (relative to the recipe) or "module:name"; it is imported in workers only
    function   the function itself, in place of a path (Python API). One that keeps nothing of this process runs in
               workers too; a closure, one that uses this process's variables or torch runs here and cannot be killed
    split      where the steps of a completion end, for a function that judges steps: "newline", a pattern between
               slashes ("/\\n\\n+/"), or a function of yours ("file.py:name"); see `oncurve.steps.splitter_of`
    """

    path: str | None = None
    split: str = "newline"
    function: Any = Field(default=None, exclude=True, repr=False)

    @field_validator("split")
    @classmethod
    def _splits(cls, split: str) -> str:
        if ":" not in split or split.startswith("/"):  # code is loaded in workers only
            try:
                splitter_of(split)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return split

    @model_validator(mode="after")
    def _one_of_two(self) -> Python:
        if (self.path is None) == (self.function is None):
            raise ValueError("give a path ('file.py:name' or 'module:name')")
        if self.function is not None and not callable(self.function):
            raise ValueError("the function must be callable")
        return self

    @property
    def default_name(self) -> str:
        """The name of the function; "reward" for a lambda."""
        if self.path is not None:
            return self.path.rpartition(":")[2]
        function = getattr(self.function, "func", self.function)  # of a functools.partial
        name: str = getattr(function, "__name__", type(function).__name__)
        return name if name.isidentifier() else "reward"

    def start(self, base: Path | None) -> Runner:
        """Workers for a path or a function that can travel, else this process. Raises ConfigError."""
        if self.function is None:
            folder = str(base or Path.cwd())
            settings = {"path": self.path, "base": folder, "split": self.split}
            return self.workers("oncurve.rewards.callables:served", settings)
        adapted = Adapted(self.function, splitter_of(self.split, base))
        reason = why_in_process(self.function)
        if reason is None:
            pickled = base64.b64encode(cloudpickle.dumps(self.function)).decode()
            settings = {"pickled": pickled, "base": str(base or Path.cwd()), "split": self.split}
            pool = self.workers("oncurve.rewards.callables:served", settings)
            try:
                assert pool.about is not None
                return pool
            except ConfigError as error:  # its module is one that only this process can import
                reason = f"a worker cannot load it ({str(error).strip().rpartition(chr(10))[2]})"
        return InProcess(adapted, adapted.accepts, reason)


def why_in_process(function: Callable[..., Any]) -> str | None:
    """Why a function must run in this process; None: a copy of it in a worker does the same.

    A copy sees this process's variables as they are now, and what it changes stays there. So closures and functions
    that read changeable variables stay here, and so does what holds torch, which works on this process's tensors.
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
    """Follow functions through what they read, as cloudpickle does for those it copies by value."""
    if id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        if value.__closure__:
            return "it is a closure" if len(seen) == 1 else f"it calls the closure {value.__name__}"
        if value.__module__ != "__main__":
            return None
        variables = inspect.getclosurevars(value).globals
        for name, used in variables.items():
            if isinstance(used, types.FunctionType):
                reason = _kept_here(used, seen)
                if reason is not None:
                    return reason
            elif not _unchangeable(used):
                return f"it uses the variable {name}"
    return None


def _unchangeable(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_unchangeable(item) for item in value)
    return isinstance(value, (*_UNCHANGEABLE, types.BuiltinFunctionType))
