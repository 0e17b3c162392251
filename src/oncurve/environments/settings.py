"""`[environment]`: which code replies to the policy, and the limits of its workers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
from pydantic import Field, JsonValue, field_validator, model_validator

from oncurve.base.errors import ConfigError
from oncurve.components import Component, refuse_extremes_in
from oncurve.environments.episode import Episode
from oncurve.environments.play import Player
from oncurve.environments.tools import player
from oncurve.processes.pool import WorkerPool
from oncurve.rewards import Seconds, WorkerLimits

Factory = tuple[str, dict[str, Any]]
"""The path of a function that returns a `Player`, and its arguments."""


_LONGEST_PROGRAM_SECONDS = 7 * 86_400.0


class NoEnvironment(Component):
    """A completion is one turn (`kind = "none"`)."""

    present: ClassVar[bool] = False
    plays: ClassVar[None] = None
    exact: ClassVar[bool] = True
    objects: ClassVar[bool] = False
    max_turns: ClassVar[int] = 1

    def missing(self) -> list[str]:
        """Return nothing."""
        return []


class EnvironmentSettings(WorkerLimits):
    """The fields of every kind of environment."""

    present: ClassVar[bool] = True
    programs: ClassVar[bool] = False
    """A program of each episode calls the policy, instead of replying to it."""

    max_turns: int = Field(default=16, ge=1, le=10**6)
    """The most turns of the policy in one episode."""

    exact: bool = True
    """The same calls give the same replies. False: an episode that is interrupted is not played again, and a run that
    is resumed does not go on to the same bits."""

    waves: int = Field(default=2, ge=1, le=1024)
    """The prompts of a rollout are divided into so many parts: while one waits for its environments, the next decodes.
    1: all are decoded together, which is faster where environments reply at once."""

    processes: int = Field(default=4, ge=1, le=1024)
    """Worker processes that play episodes, each one call at a time; coroutines of its episodes overlap. More for tools
    that wait and are none."""

    timeout_seconds: Seconds = 30.0
    """The limit for one reply. A longer one ends its worker and leaves the episode out of training."""

    @field_validator("settings", "env_config", mode="before", check_fields=False)
    @classmethod
    def _bearable(cls, settings: Any) -> Any:
        refuse_extremes_in(settings)
        return settings

    @property
    def plays(self) -> EnvironmentSettings:
        """The settings themselves; None where there is no environment."""
        return self

    @property
    def title(self) -> str:
        """The environment's name in the plan."""
        return type(self).__name__

    @property
    def scores(self) -> bool:
        """Return whether it may give rewards, as far as the settings alone tell."""
        return True

    @property
    def objects(self) -> bool:
        """Return whether there are objects in place of paths."""
        return False

    @property
    def in_this_process(self) -> bool:
        """Return whether its objects cannot be copied to workers."""
        return False

    @property
    def call_forms(self) -> Mapping[str, str]:
        """Return how a call of each tool is written in plain text; empty: as the model's template has it."""
        return {}

    def missing(self) -> list[str]:
        """Return a line for each thing without which the environment cannot run."""
        return []

    def factory(self, base: Path | None) -> Factory:
        """Return what a worker loads. `base`: the folder against which paths in the settings are resolved."""
        raise TypeError(f"{type(self).__name__} must define factory()")

    def workers(self, base: Path | None) -> WorkerPool:
        """Return a pool of one worker: an episode stays where it began."""
        path, settings = self.factory(base)
        return self.pool(path, settings, 1, self.timeout_seconds)

    def here(self, copied: bool = True) -> Player | None:
        """Return what plays episodes in this process, where no worker can; None: workers do.

        `copied` False: a worker could not load the copy of its objects.
        """
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

    calls: dict[str, str] = Field(default_factory=dict)
    """How a call of a tool with one argument is written in plain text: `{ calculate = "<<{}>>" }`; a form that begins
    with `{}` takes what stands before its end in the line. For a model whose chat template knows no tools, and one
    without a template; none: as its template has it, or as JSON."""

    classes: Any = Field(default=None, exclude=True, repr=False)
    """The class itself, or a mapping of names to classes, in place of a path (Python API)."""

    functions: Any = Field(default=(), exclude=True, repr=False)
    """The functions themselves, in place of paths (Python API)."""

    @field_validator("functions", mode="before")
    @classmethod
    def _in_a_tuple(cls, functions: Any) -> Any:
        return tuple(functions) if isinstance(functions, list) else functions

    @model_validator(mode="after")
    def _something(self) -> Tools:
        if self.path is None and self.classes is None and not self.tools and not self.functions:
            raise ValueError('give a class (path = "game.py:Game"), or functions (tools = ["calculator.py:add"])')
        listed = isinstance(self.functions, tuple)
        if not listed or not all(map(callable, (*self._classes.values(), *self.functions))):
            raise ValueError("classes must be callable, and functions a list of callables")
        if (self.path is not None or self.tools) and (self.classes is not None or self.functions):
            raise ValueError("give classes and functions as paths, or all as objects")
        for form in self.calls.values():
            if form.count("{}") != 1 or form.endswith("{}"):
                raise ValueError(f"calls: {form!r} must have {{}} once, for the argument, and an end after it")
        for path in (*self._paths.values(), *self.tools):
            if not all(path.rpartition(":")[::2]):
                raise ValueError(f"{path!r} names nothing in a file; write 'file.py:Name'")
        return self

    @property
    def call_forms(self) -> Mapping[str, str]:
        """The forms of calls in plain text."""
        return self.calls

    @property
    def _paths(self) -> dict[str, str]:
        return {"": self.path} if isinstance(self.path, str) else self.path or {}

    @property
    def title(self) -> str:
        """The name of the class, of several that of the one with a reward, "environment" or "tools"."""
        names = [path.rpartition(":")[2] for path in self._paths.values()]
        names += [getattr(getattr(each, "func", each), "__name__", "") for each in self._scoring or self._given]
        one = names[0] if len(names) == 1 and names[0].isidentifier() else "environment"  # not <lambda>
        return one if names else "tools"

    @property
    def scores(self) -> bool:
        """Return whether there may be a `get_reward`."""
        return bool(self._paths or self._scoring)

    @property
    def _given(self) -> list[Callable[..., Any]]:
        return list(self._classes.values())

    @property
    def _scoring(self) -> list[Callable[..., Any]]:
        """The classes that may give a reward; what other factories make is not known."""
        return [
            each
            for each in self._given
            if not isinstance(each, type) or issubclass(each, Episode) or hasattr(each, "get_reward")
        ]

    @property
    def _classes(self) -> Mapping[str, Callable[..., Any]]:
        if isinstance(self.classes, Mapping):
            return self.classes
        return {} if self.classes is None else {"": self.classes}

    @property
    def objects(self) -> bool:
        """Return whether there are objects in place of paths."""
        return self.classes is not None or bool(self.functions)

    def _pickled(self) -> str | None:
        return _pickled((dict(self._classes), self.functions))

    @property
    def in_this_process(self) -> bool:
        """Return whether its objects cannot be copied to workers."""
        return self.objects and self._pickled() is None

    def factory(self, base: Path | None) -> Factory:
        """Return the tools' own factory."""
        pickled = self._pickled() if self.objects else None
        code = {"paths": self._paths, "tools": self.tools, "pickled": pickled, "settings": self.settings}
        return "oncurve.environments.tools:served", {**code, "base": str(base or Path.cwd())}

    def here(self, copied: bool = True) -> Player | None:
        """Return a player in this process for objects that cannot be copied: it can be neither limited nor killed."""
        if not (self.in_this_process or (self.objects and not copied)):
            return None
        return player(self._classes, self.functions, self.settings, here=True)


class Endpoint(EnvironmentSettings):
    """A program of yours that calls the policy at an OpenAI-compatible address (`kind = "endpoint"`).

    Calls that go on from what the policy has answered are one completion. Other calls of an episode are further
    completions of its group, with the same reward.
    """

    programs: ClassVar[bool] = True

    program: str | None = None
    """A function, sync or async: "agent.py:run" (relative to the recipe) or "module:run". It is given what it names of
    base_url, api_key, model, row, prompt and the columns, and returns the reward of the episode, or None."""

    command: tuple[str, ...] = ()
    """In place of a function, a command such as ["python", "agent.py"], started in the recipe's folder, with
    OPENAI_BASE_URL, OPENAI_API_KEY and ONCURVE_ROW in its environment. The last line of its output is the reward."""

    function: Any = Field(default=None, exclude=True, repr=False)
    """The function itself, in place of a path (Python API)."""

    processes: int = Field(default=8, ge=1, le=1024)
    """Worker processes, each of which runs one program at a time: so many rows are decoded together."""

    timeout_seconds: Seconds = 60.0
    """The limit for a program's next call, or its end. A longer wait ends it and leaves its episode out of training."""

    max_prompt_tokens: int = Field(default=4096, ge=1, le=1 << 24)
    """The most tokens of the messages of a call that begins a completion. A longer call gets an error."""

    together_seconds: float = Field(default=0.02, ge=0, le=60)
    """Calls that one program makes at the same time, within so many seconds, are answered together, in an order that
    depends on what they say alone."""

    @model_validator(mode="after")
    def _one(self) -> Endpoint:
        if sum((self.program is not None, bool(self.command), self.function is not None)) != 1:
            raise ValueError('give a program ("agent.py:run") or a command (["python", "agent.py"]), one of them')
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            raise ValueError("it needs starlette and uvicorn; install them with: pip install 'oncurve[endpoint]'")
        if self.function is not None and not callable(self.function):
            raise ValueError("the function must be callable")
        if self.program is not None and not all(self.program.rpartition(":")[::2]):
            raise ValueError(f"{self.program!r} names nothing in a file; write 'agent.py:run'")
        return self

    @property
    def title(self) -> str:
        """The name of the function, or of the command."""
        if self.command:
            return Path(self.command[-1]).stem or "program"
        return getattr(self.function, "__name__", "program") if self.program is None else self.program.split(":")[-1]

    def factory(self, base: Path | None) -> Factory:
        """Return the programs' own factory. Raises ConfigError: the function cannot be copied to a worker."""
        pickled = None if self.function is None else _pickled(self.function)
        if pickled is None and self.function is not None:
            raise ConfigError("environment.function: it cannot be copied to a worker; give its path (program)")
        code = {"program": self.program, "command": self.command, "pickled": pickled}
        return "oncurve.environments.program:served", {**code, "base": str(base or Path.cwd())}

    def workers(self, base: Path | None) -> WorkerPool:
        """Return a pool of one worker. It limits a program's memory, and the wait for its calls limits their time."""
        path, settings = self.factory(base)
        return self.pool(path, settings, 1, _LONGEST_PROGRAM_SECONDS)


def _pickled(objects: Any) -> str | None:
    """Return objects as cloudpickle bytes in base64; None: they cannot be copied."""
    try:
        return base64.b64encode(cloudpickle.dumps(objects)).decode()
    except Exception:  # picklers raise anything
        return None


def environment_meant(table: Mapping[str, Any]) -> str | None:
    """Return the kind of an `[environment]` table without a `kind`, by the code that it names."""
    if table.keys() & {"program", "command", "function"}:
        return "endpoint"
    return "tools" if table.keys() & {"path", "tools", "classes", "functions"} else None
