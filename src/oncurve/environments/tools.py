"""A class whose methods are tools, and functions that are tools: the shape of TRL's `environment_factory`.

    class Game:
        def reset(self, **row) -> str | None: ...      # what it returns is added to the last user message
        def guess(self, number: int) -> str: ...       # every public method is a tool; its docstring describes it
        def get_reward(self) -> float: ...             # optional

A tool's docstring has an `Args:` section in Google's style; transformers makes the JSON schema of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.base.imports import locate
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.play import MOST_CALLS, Player
from oncurve.rewards import unpickled

RESERVED = ("reset", "get_reward")
BY_COLUMN = "environment"
"""The column that picks one of several environments."""


class Toolbox:
    """The environments of a worker, made when there are too few and used again, and the tools of each.

    factories   by the value of the column `environment`; {"": factory} where there is one for all rows
    functions   tools of every episode
    """

    def __init__(self, factories: Mapping[str, Callable[[], Any]], functions: Sequence[Callable[..., Any]]) -> None:
        self.factories, self._functions = factories, functions
        self._free = {name: [factory()] for name, factory in factories.items()}
        self.scores = any(hasattr(found, "get_reward") for (found,) in self._free.values())
        schemas = {name: self._described(name) for name in self._free or [""]}
        self.schemas: Any = schemas.get("", schemas)

    def _described(self, name: str) -> list[dict[str, Any]]:
        from transformers.utils import get_json_schema  # here: it takes long to import

        found: dict[str, Any] = {}
        for called, tool in self._named(self._free[name][0] if name in self._free else None):
            if called in found:
                raise ConfigError(f"tool {called}: there are two of this name; rename one")
            try:
                found[called] = get_json_schema(tool)
            except Exception as error:
                raise ConfigError(f"tool {called}: {error}") from error
        return list(found.values())

    def _named(self, environment: Any) -> list[tuple[str, Callable[..., Any]]]:
        # of the class: a property is not evaluated
        members = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
        public = [name for name in members if name[0] != "_" and name not in RESERVED]
        tools = [(getattr(function, "__name__", "?"), function) for function in self._functions]
        return tools + [(name, getattr(environment, name)) for name in public]

    def take(self, name: str) -> tuple[Any, dict[str, Callable[..., Any]]]:
        """Return an environment that plays no other episode, or None if there is none of this name, and the tools."""
        free = self._free.get(name, [])
        environment = free.pop() if free else self.factories[name]() if name in self.factories else None
        return environment, dict(self._named(environment))

    def give_back(self, name: str, environment: Any) -> None:
        """Take back an environment whose episode is over."""
        self._free.setdefault(name, []).append(environment)


class ToolsEpisode(Episode):
    """An episode with an object of the user's, and with functions."""

    answers = True

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox, self._chosen = toolbox, ""
        self.tools, self.scores = toolbox.schemas, toolbox.scores
        self.environment: Any = None
        self._tools = dict[str, Callable[..., Any]]()

    def start(self, row: Mapping[str, Any], prompt: Any) -> Any:
        """Return what `reset` returns, which gets all columns of the row, as far as it takes them."""
        names = self._toolbox.factories
        several = bool(names) and "" not in names
        self._chosen = str(row.get(BY_COLUMN)) if several else ""
        if several and self._chosen not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(f"the column {BY_COLUMN!r} holds {self._chosen!r}, and the environments are {known}")
        self.environment, self._tools = self._toolbox.take(self._chosen)
        reset = getattr(self.environment, "reset", None)
        if reset is None:
            return None
        asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        given = {**({"prompt": prompt} if asked else {}), **row}  # a row without a prompt has an empty one
        if several:
            given.pop(BY_COLUMN, None)
        parameters = inspect.signature(reset).parameters.values()
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            taken = {each.name for each in parameters}
            given = {name: value for name, value in given.items() if name in taken}
        return reset(**given)

    def close(self) -> None:
        """Give the environment back for another episode."""
        if self.environment is not None:
            self._toolbox.give_back(self._chosen, self.environment)
        self.environment = None

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Any:
        """Return the results of the calls, in their order; an exception becomes `{"error": ...}`."""
        results = [self._called(call) if number < MOST_CALLS else _TOO_MANY for number, call in enumerate(calls)]
        return _waited(calls, results) if any(map(inspect.isawaitable, results)) else _reply(calls, results)

    def _called(self, call: ToolCall) -> Any:
        tool = self._tools.get(call.name)
        if tool is None:
            return _error(f"Tool {call.name} not found.")  # as TRL has it
        try:
            return tool(**call.arguments)
        except Exception as error:
            return _error(error)

    def score(self) -> Any:
        """Return what `get_reward` returns, or None if there is none."""
        reward = getattr(self.environment, "get_reward", None)
        return None if reward is None else reward()


def _reply(calls: Sequence[ToolCall], results: Sequence[Any]) -> Reply:
    messages = [
        {"role": "tool", "name": call.name, "content": result if _has_parts(result) else str(result)}
        for call, result in zip(calls, results, strict=True)
    ]
    return Reply(messages, errors=sum(isinstance(result, _Failed) for result in results))


async def _waited(calls: Sequence[ToolCall], results: Sequence[Any]) -> Reply:
    """Wait for the results that are coroutines, all together."""
    from asyncio import gather  # here: it takes long to import, and few tools need it

    waiting = {number: result for number, result in enumerate(results) if inspect.isawaitable(result)}
    found = dict(enumerate(results)) | dict(
        zip(waiting, await gather(*waiting.values(), return_exceptions=True), strict=True)
    )
    for number in waiting:
        if isinstance(found[number], BaseException):
            if not isinstance(found[number], Exception):
                raise found[number]
            found[number] = _error(found[number])
    return _reply(calls, list(found.values()))


def _has_parts(result: Any) -> bool:
    """Return whether the result of a tool is the parts of a message's content."""
    return isinstance(result, list) and all(isinstance(part, Mapping) and "type" in part for part in result)


class _Failed(dict[str, str]):
    """The result of a call that failed."""


def _error(error: object) -> _Failed:
    return _Failed(error=str(error))


_TOO_MANY = _error(f"more than {MOST_CALLS} calls in one turn: this one was not made")


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
    toolbox = Toolbox(made, functions)
    return Player(lambda: ToolsEpisode(toolbox), here)


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
    classes, functions = unpickled(pickled)
    return player(classes, functions, settings or {})
