"""A class whose methods are tools, and functions that are tools: the shape of TRL's `environment_factory`.

    class Game:
        def reset(self, **row) -> str | None: ...      # what it returns is added to the last user message
        def guess(self, number: int) -> str: ...       # every public method is a tool; its docstring describes it
        def get_reward(self) -> float: ...             # optional

A tool's docstring has an `Args:` section in Google's style; transformers makes the JSON schema of it.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.play import MOST_CALLS, Player

RESERVED = ("reset", "get_reward")
BY_COLUMN = "environment"
"""The column that picks one of several environments."""


class ToolsEpisode(Episode):
    """An episode with an object of the user's, and with functions.

    factories   by the value of the column `environment`; {"": factory} where there is one for all rows
    functions   tools of every episode
    """

    answers = True

    def __init__(self, factories: Mapping[str, Callable[[], Any]], functions: Sequence[Callable[..., Any]]) -> None:
        self._objects = {name: factory() for name, factory in factories.items()}
        self._functions = {function.__name__: function for function in functions}
        self.environment: Any = None
        self._tools = dict(self._functions)
        described = {name: self._described(name) for name in self._objects or [""]}
        self.tools = next(iter(described.values())) if len(described) == 1 else described

    def _described(self, name: str) -> list[dict[str, Any]]:
        from transformers.utils import get_json_schema  # here: it takes long to import

        found = []
        for called, tool in self._tools_of(self._objects.get(name)).items():
            try:
                found.append(get_json_schema(tool))
            except Exception as error:
                raise ConfigError(f"tool {called}: {error}") from error
        return found

    def _tools_of(self, environment: Any) -> dict[str, Callable[..., Any]]:
        methods = {} if environment is None else dict(inspect.getmembers(environment, inspect.ismethod))
        public = {name: method for name, method in methods.items() if name[0] != "_" and name not in RESERVED}
        return {**self._functions, **public}

    def start(self, row: Mapping[str, Any], prompt: Any) -> Any:
        """Return what `reset` returns, which gets all columns of the row, as far as it takes them."""
        chosen = str(row.get(BY_COLUMN, "")) if "" not in self._objects else ""
        if self._objects and chosen not in self._objects:
            names = ", ".join(map(repr, self._objects))
            raise ValueError(f"the column {BY_COLUMN!r} holds {chosen!r}, and the environments are {names}")
        self.environment = self._objects.get(chosen)
        self._tools = self._tools_of(self.environment)
        reset = getattr(self.environment, "reset", None)
        if reset is None:
            return None
        given = {"prompt": prompt, **row}
        if "" not in self._objects:
            given.pop(BY_COLUMN, None)
        parameters = inspect.signature(reset).parameters.values()
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            taken = {each.name for each in parameters}
            given = {name: value for name, value in given.items() if name in taken}
        return finished(reset(**given))

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Reply:
        """Return the results of the calls, in their order; an exception becomes `{"error": ...}`."""
        results = [self._called(call) if number < MOST_CALLS else _TOO_MANY for number, call in enumerate(calls)]
        waiting = [number for number, result in enumerate(results) if inspect.isawaitable(result)]
        if waiting:
            for number, result in zip(waiting, finished(_all(results[each] for each in waiting)), strict=True):
                results[number] = _error(result) if isinstance(result, Exception) else result
        errors = sum(isinstance(result, _Failed) for result in results)
        messages = [
            {"role": "tool", "name": call.name, "content": result if isinstance(result, list) else str(result)}
            for call, result in zip(calls, results, strict=True)
        ]
        return Reply(messages, errors=errors)

    def _called(self, call: ToolCall) -> Any:
        tool = self._tools.get(call.name)
        if tool is None:
            return _error(f"there is no tool {call.name!r}; the tools are: {', '.join(self._tools)}")
        try:
            return tool(**call.arguments)
        except Exception as error:
            return _error(error)

    def score(self) -> float | None:
        """Return what `get_reward` returns, or None if there is none."""
        reward = getattr(self.environment, "get_reward", None)
        value = None if reward is None else finished(reward())
        return None if value is None else float(value)


class _Failed(dict[str, str]):
    """The result of a call that failed."""


def _error(error: object) -> _Failed:
    return _Failed(error=str(error))


_TOO_MANY = _error(f"more than {MOST_CALLS} calls in one turn: this one was not made")


_loops: list[Any] = []


def finished(value: Any) -> Any:
    """Return the result of a coroutine, from the one event loop that lives as long as the environments do."""
    if not inspect.isawaitable(value):
        return value
    import asyncio  # here: it takes long to import, and few tools need it

    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0].run_until_complete(value)


async def _all(results: Any) -> list[Any]:
    import asyncio

    return list(await asyncio.gather(*results, return_exceptions=True))


def player(
    classes: Mapping[str, Callable[..., Any]],
    functions: Sequence[Callable[..., Any]],
    settings: Mapping[str, Any],
    here: bool = False,
) -> Player:
    """Return the player of an `Episode`, or of classes and functions whose methods are tools."""
    only = classes.get("")
    if isinstance(only, type) and issubclass(only, Episode):
        return Player(lambda: only(**settings), here)
    made = {name: partial(cls, **settings) for name, cls in classes.items()}
    return Player(lambda: ToolsEpisode(made, functions), here)


def served(
    paths: Mapping[str, str],
    tools: Sequence[str],
    pickled: str | None = None,
    settings: Mapping[str, Any] | None = None,
    base: str | None = None,
) -> Player:
    """Return the callable of a worker, with the code at these paths, or with that in the parent's cloudpickle bytes."""
    if pickled is None:
        folder = None if base is None else Path(base)
        classes = {name: locate(path, folder) for name, path in paths.items()}
        return player(classes, [locate(path, folder) for path in tools], settings or {})
    import cloudpickle  # here: only a worker unpickles, and only its own parent's bytes

    classes, functions = cloudpickle.loads(base64.b64decode(pickled))
    return player(classes, functions, settings or {})
