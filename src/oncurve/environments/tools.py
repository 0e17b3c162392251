"""A class whose methods are tools, and functions that are tools: the shape of TRL's `environment_factory`.

    class Game:
        def reset(self, **row) -> str | None: ...      # what it returns is added to the last user message
        def guess(self, number: int) -> str: ...       # every public method is a tool; its docstring describes it
        def get_reward(self) -> float: ...             # optional

A tool's docstring has an `Args:` section in Google's style; transformers makes the JSON schema of it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.environments.episode import Episode, Reply, ToolCall
from oncurve.environments.play import MOST_CALLS, taken

RESERVED = ("reset", "get_reward")
BY_COLUMN = "environment"
"""The column that picks one of several environments."""


class ToolsEpisode(Episode):
    """An episode with an object of the user's, which is made once and reset for each episode, and with functions.

    factories   by the value of the column `environment`; {"": factory} where there is one for all rows, {} for none
    functions   tools of every episode
    """

    answers = True

    def __init__(self, factories: Mapping[str, Callable[[], Any]], functions: Sequence[Callable[..., Any]]) -> None:
        self._factories, self._functions = factories or {"": lambda: None}, functions
        self._made, self._tools = dict[str, Any](), dict[str, Callable[..., Any]]()
        self.environment: Any = None

    @cached_property
    def tools(self) -> Any:
        """The schemas of the tools."""
        schemas = {name: _described(self._named(self._of(name))) for name in self._factories}
        return schemas.get("", schemas)

    @cached_property
    def scores(self) -> bool:  # type: ignore[override]
        """Return whether an environment has a `get_reward`."""
        return any(hasattr(self._of(name), "get_reward") for name in self._factories)

    def _of(self, name: str) -> Any:
        """Return the environment of this name."""
        if name not in self._made:
            self._made[name] = self._factories[name]()
        return self._made[name]

    def _named(self, environment: Any) -> list[tuple[str, Callable[..., Any]]]:
        # of the class: a property is not evaluated
        members = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
        public = [name for name in members if name[0] != "_" and name not in RESERVED]
        tools = [(getattr(function, "__name__", "?"), function) for function in self._functions]
        return tools + [(name, getattr(environment, name)) for name in public]

    def start(self, row: Mapping[str, Any], prompt: Any) -> Any:
        """Return what `reset` returns, which gets all columns of the row, as far as it takes them."""
        several = "" not in self._factories
        chosen = str(row.get(BY_COLUMN)) if several else ""
        self.environment = self._of(chosen)
        self._tools = dict(self._named(self.environment))
        reset = getattr(self.environment, "reset", lambda: None)
        asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        given = {**({"prompt": prompt} if asked else {}), **row}  # a row without a prompt has an empty one
        if several:
            given.pop(BY_COLUMN, None)
        return reset(**taken(reset, given))

    def reply(self, text: str, calls: Sequence[ToolCall]) -> Any:
        """Return the results of the calls, in their order; an exception becomes `{"error": ...}`."""
        results = [self._called(call) if number < MOST_CALLS else _TOO_MANY for number, call in enumerate(calls)]
        return _awaited(calls, results) if any(map(inspect.isawaitable, results)) else _reply(calls, results)

    def _called(self, call: ToolCall) -> Any:
        if call.name not in self._tools:
            return _error(f"Tool {call.name} not found.")  # as TRL has it
        try:
            return self._tools[call.name](**call.arguments)
        except Exception as error:
            return _error(error)

    def score(self) -> Any:
        """Return what `get_reward` returns, or None if there is none."""
        return getattr(self.environment, "get_reward", lambda: None)()


def _reply(calls: Sequence[ToolCall], results: Sequence[Any]) -> Reply:
    messages = [
        {"role": "tool", "name": call.name, "content": result if _has_parts(result) else str(result)}
        for call, result in zip(calls, results, strict=True)
    ]
    return Reply(messages, errors=sum(isinstance(result, _Failed) for result in results))


async def _awaited(calls: Sequence[ToolCall], results: Sequence[Any]) -> Reply:
    """Wait for the results that are coroutines, all together."""
    from asyncio import gather  # here: it takes long to import, and few tools need it

    return _reply(calls, await gather(*map(_tried, results)))


async def _tried(result: Any) -> Any:
    try:
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        return _error(error)


def _described(tools: Sequence[tuple[str, Callable[..., Any]]]) -> list[dict[str, Any]]:
    from transformers.utils import get_json_schema  # here: it takes long to import

    found: dict[str, Any] = {}
    for name, tool in tools:
        if name in found:
            raise ConfigError(f"tool {name}: there are two of this name; rename one")
        try:
            found[name] = get_json_schema(tool)
        except Exception as error:
            raise ConfigError(f"tool {name}: {error}") from error
    return list(found.values())


def _has_parts(result: Any) -> bool:
    """Return whether the result of a tool is the parts of a message's content."""
    return isinstance(result, list) and all(isinstance(part, Mapping) and "type" in part for part in result)


class _Failed(dict[str, str]):
    """The result of a call that failed."""


def _error(error: object) -> _Failed:
    return _Failed(error=str(error))


_TOO_MANY = _error(f"more than {MOST_CALLS} calls in one turn: this one was not made")
