"""`[environment]`: which code replies to the policy, and the limits of its workers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
from pydantic import Field, JsonValue, model_validator

from oncurve.components import Component
from oncurve.environments.play import Player
from oncurve.environments.tools import player
from oncurve.processes.pool import WorkerPool
from oncurve.rewards import Seconds, WorkerLimits

Factory = tuple[str, dict[str, Any]]
"""The path of a function that returns a `Player`, and its arguments."""


class NoEnvironment(Component):
    """A completion is one turn (`kind = "none"`)."""

    present: ClassVar[bool] = False
    exact: ClassVar[bool] = True


class EnvironmentSettings(WorkerLimits):
    """The fields of every kind of environment."""

    present: ClassVar[bool] = True

    max_turns: int = Field(default=16, ge=1, le=10**6)
    """The most turns of the policy in one episode."""

    exact: bool = True
    """The same calls give the same replies. False: an episode that is interrupted is not played again, and a run that
    is resumed does not go on to the same bits."""

    waves: int = Field(default=2, ge=1, le=1024)
    """The prompts of a rollout are divided into so many parts: while one waits for its environments, the next decodes.
    1: all are decoded together, which is faster where environments reply at once."""

    processes: int = Field(default=4, ge=1, le=1024)
    """Worker processes that play episodes, each one call at a time: more for tools that wait."""

    timeout_seconds: Seconds = 30.0
    """The limit for one reply. A longer one ends its worker and leaves the episode out of training."""

    @property
    def title(self) -> str:
        """The environment's name in the plan."""
        return type(self).__name__

    def factory(self, base: Path | None) -> Factory:
        """Return what a worker loads. `base`: the folder against which paths in the settings are resolved."""
        raise TypeError(f"{type(self).__name__} must define factory()")

    def workers(self, base: Path | None) -> WorkerPool:
        """Return a pool of one worker: an episode stays where it began."""
        path, settings = self.factory(base)
        return self.pool(path, settings, 1, self.timeout_seconds)

    def here(self) -> Player | None:
        """Return what plays episodes in this process, where no worker can; None: workers do."""
        return None


class Tools(EnvironmentSettings):
    """Code of yours (`kind = "tools"`, or the path of a class): a class whose public methods are tools, as TRL has it,
    functions that are tools, or an `oncurve.environments.Episode`.
    """

    path: str | dict[str, str] | None = None
    """The class: "file.py:Name" (relative to the recipe) or "module:Name"; several, by the value of the column
    `environment`: `{ maze = "maze.py:Maze", shop = "shop.py:Shop" }`."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the class."""

    tools: tuple[str, ...] = ()
    """Functions that are tools of every episode, by the same paths."""

    classes: Any = Field(default=None, exclude=True, repr=False)
    """The class itself, or a mapping of names to classes, in place of a path (Python API)."""

    functions: tuple[Any, ...] = Field(default=(), exclude=True, repr=False)
    """The functions themselves, in place of paths (Python API)."""

    @model_validator(mode="after")
    def _something(self) -> Tools:
        if self.path is None and self.classes is None and not self.tools and not self.functions:
            raise ValueError('give a class (path = "game.py:Game"), or functions (tools = ["calculator.py:add"])')
        if (self.path is not None or self.tools) and (self.classes is not None or self.functions):
            raise ValueError("give classes and functions as paths, or all as objects")
        for path in (*self._paths.values(), *self.tools):
            if not all(path.rpartition(":")[::2]):
                raise ValueError(f"{path!r} names nothing in a file; write 'file.py:Name'")
        return self

    @property
    def _paths(self) -> dict[str, str]:
        return {"": self.path} if isinstance(self.path, str) else self.path or {}

    @property
    def title(self) -> str:
        """The name of the class, or "tools"."""
        names = [path.rpartition(":")[2] for path in self._paths.values()]
        names += [getattr(each, "__name__", "environment") for each in self._classes.values()]
        return names[0] if len(names) == 1 else "environment" if names else "tools"

    @property
    def _classes(self) -> Mapping[str, Callable[..., Any]]:
        if isinstance(self.classes, Mapping):
            return self.classes
        return {} if self.classes is None else {"": self.classes}

    def _pickled(self) -> str | None:
        """Return the objects as cloudpickle bytes in base64; None: they cannot be copied."""
        try:
            return base64.b64encode(cloudpickle.dumps((dict(self._classes), self.functions))).decode()
        except Exception:  # picklers raise anything
            return None

    def factory(self, base: Path | None) -> Factory:
        """Return the tools' own factory."""
        pickled = self._pickled() if self.classes is not None or self.functions else None
        code = {"paths": self._paths, "tools": self.tools, "pickled": pickled, "settings": self.settings}
        return "oncurve.environments.tools:served", {**code, "base": str(base or Path.cwd())}

    def here(self) -> Player | None:
        """Return a player in this process for objects that cannot be copied: it can be neither limited nor killed."""
        if (self.classes is None and not self.functions) or self._pickled() is not None:
            return None
        return player(self._classes, self.functions, self.settings, here=True)


ENVIRONMENT_KINDS: dict[str, type[Component]] = {"none": NoEnvironment, "tools": Tools}
"""The kinds of environments, by their names in a configuration."""


def environment_meant(table: Mapping[str, Any]) -> str | None:
    """Return the kind of an `[environment]` table without a `kind`: "tools" where it names code."""
    return "tools" if table.keys() & {"path", "tools", "classes", "functions"} else None
