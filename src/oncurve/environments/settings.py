"""`[environment]`: which code replies to the policy, and the limits of its workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, JsonValue, field_validator, model_validator

from oncurve.base.imports import locate
from oncurve.components import Component, refuse_extremes_in
from oncurve.environments.episode import Episode
from oncurve.environments.play import Player, pickled
from oncurve.environments.program import ProgramPlayer, command_runner
from oncurve.environments.tools import ToolsEpisode
from oncurve.processes.pool import WorkerPool
from oncurve.rewards import Seconds, WorkerLimits, unpickled


class NoEnvironment(Component):
    """A completion is one turn (`kind = "none"`)."""

    present: ClassVar[bool] = False
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
    needs: ClassVar[tuple[str, ...]] = ()
    """The extra that it needs, and the modules that this brings."""

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
        """Return whether its objects cannot be copied to workers: here they can be neither limited nor killed."""
        return pickled(self) is None

    @property
    def call_forms(self) -> Mapping[str, str]:
        """Return how a call of each tool is written in plain text; empty: as the model's template has it."""
        return {}

    def missing(self) -> list[str]:
        """Return a line for each module without which it cannot run, which says how to install it."""
        lacks = (name for name in self.needs[1:] if find_spec(name) is None)
        return [f"environment.kind: {name} is not installed: pip install 'oncurve[{self.needs[0]}]'" for name in lacks]

    def episode(self, base: Path) -> Episode:
        """Return an object that plays episodes. `base`: the folder against which paths in the settings are resolved."""
        raise TypeError(f"{type(self).__name__} must define episode()")

    def player(self, base: Path) -> Callable[[Mapping[str, Any]], Any]:
        """Return the callable of a worker."""
        return Player(lambda: self.episode(base))

    def workers(self, base: Path | None) -> WorkerPool:
        """Return a pool of one worker: an episode stays where it began. The wait for a program's calls limits its time.
        Not with objects that cannot be copied.
        """
        limit = 7 * 86_400.0 if self.programs else self.timeout_seconds  # a week
        return self.pool(f"{__name__}:served", {"settings": pickled(self), "base": str(base or Path.cwd())}, 1, limit)


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

    functions: tuple[Any, ...] = Field(default=(), exclude=True, repr=False)
    """The functions themselves, in place of paths (Python API)."""

    @model_validator(mode="after")
    def _something(self) -> Tools:
        code = (*self._classes.values(), *self.tools, *self.functions)
        if not code:
            raise ValueError('give a class (path = "game.py:Game"), or functions (tools = ["calculator.py:add"])')
        if self.path is not None and self.classes is not None:
            raise ValueError("give the classes as paths or as objects, not both")
        _check_code(code)
        for form in self.calls.values():
            if form.count("{}") != 1 or form.endswith("{}"):
                raise ValueError(f"calls: {form!r} must have {{}} once, for the argument, and an end after it")
        return self

    @property
    def _classes(self) -> Mapping[str, Any]:
        """The classes or their paths, by the value of the column `environment`; "": of all rows."""
        found = self.path if self.classes is None else self.classes
        return found if isinstance(found, Mapping) else {} if found is None else {"": found}

    @property
    def _scoring(self) -> list[Any]:
        """The classes that may give a reward; what paths and other factories make is not known."""
        return list(filter(_may_score, self._classes.values()))

    @property
    def title(self) -> str:
        """The name of the class, of several that of the one with a reward, "environment" or "tools"."""
        names = list(map(_name, self._scoring or self._classes.values()))
        one = names[0] if len(names) == 1 and names[0].isidentifier() else "environment"  # not <lambda>
        return one if names else "tools"

    @property
    def scores(self) -> bool:
        """Return whether there may be a `get_reward`."""
        return bool(self._scoring)

    @property
    def call_forms(self) -> Mapping[str, str]:
        """The forms of calls in plain text."""
        return self.calls

    @property
    def objects(self) -> bool:
        """Return whether there are objects in place of paths."""
        return self.classes is not None or bool(self.functions)

    def episode(self, base: Path) -> Episode:
        """Return an `Episode` of the user's, or one of the tools."""
        classes = {name: partial(_located(code, base), **self.settings) for name, code in self._classes.items()}
        only = classes.get("")
        if only is not None and isinstance(only.func, type) and issubclass(only.func, Episode):
            found: Episode = only()
            return found
        return ToolsEpisode(classes, [_located(code, base) for code in (*self.tools, *self.functions)])


class Endpoint(EnvironmentSettings):
    """A program of yours that calls the policy at an OpenAI-compatible address (`kind = "endpoint"`).

    Calls that go on from what the policy has answered are one completion. Other calls of an episode are further
    completions of its group, with the same reward.
    """

    programs: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("endpoint", "starlette", "uvicorn")

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
        _check_code([code for code in (self.program, self.function) if code is not None])
        return self

    @property
    def title(self) -> str:
        """The name of the function, or of the command."""
        scripts = [word for word in self.command if word.endswith((".py", ".sh"))] or self.command
        named = Path(scripts[0]).stem if scripts else _name(self.program or self.function)
        return re.sub(r"[<>\s]+", "_", named) or "program"

    def player(self, base: Path) -> ProgramPlayer:
        """Return what runs the program."""
        run = command_runner(self.command, base) if self.command else _located(self.program or self.function, base)
        return ProgramPlayer(run)


def served(settings: str, base: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return the callable of a worker, from a copy of the settings."""
    found: EnvironmentSettings = unpickled(settings)
    return found.player(Path(base))


def _check_code(code: Sequence[Any]) -> None:
    for each in code:
        if not (all(each.rpartition(":")[::2]) if isinstance(each, str) else callable(each)):
            raise ValueError(f"{each!r:.60} is no code, and names nothing in a file; write 'file.py:Name'")


def _may_score(code: Any) -> bool:
    return not isinstance(code, type) or issubclass(code, Episode) or hasattr(code, "get_reward")


def _name(code: Any) -> str:
    return code.rpartition(":")[2] if isinstance(code, str) else getattr(getattr(code, "func", code), "__name__", "")


def _located(code: Any, base: Path) -> Any:
    """Return the class or function that is given itself or by its path."""
    return locate(code, base) if isinstance(code, str) else code


def environment_meant(table: Mapping[str, Any]) -> str | None:
    """Return the kind of an `[environment]` table without a `kind`, by the code that it names."""
    if table.keys() & {"program", "command", "function"}:
        return "endpoint"
    return "tools" if table.keys() & {"path", "tools", "classes", "functions"} else None
