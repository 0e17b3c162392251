"""verl's tools as an environment: the classes that a tool configuration names, called as verl's agent loop calls them.

    tools:
      - class_name: my_tools.Calculator          # verl.tools.base_tool.BaseTool
        config: {...}
        tool_schema: {type: function, function: {name: calculator, ...}}

A row's `extra_info.tools_kwargs` has the `create_kwargs`, `execute_kwargs` and `release_kwargs` of each tool by its
name. Rewards of `execute` are not added to the episode's, as verl does not add them.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.base.imports import import_file
from oncurve.config import read_table
from oncurve.environments import Episode, Reply, ToolCall, ToolsEpisode


class VerlTools(Episode):
    """Episodes with verl's tools.

    config      the file of tools
    functions   a file whose functions are tools
    longest     the most characters of a tool's result; 0: any
    side        where a longer one is cut: "left", "right" or "middle"
    """

    answers = True

    def __init__(
        self, config: str | None = None, functions: str | None = None, longest: int = 0, side: str = "middle"
    ) -> None:
        self._longest, self._side = longest, side
        entries = [] if config is None else read_table(Path(config), toml=False).get("tools", [])
        self._tools = {tool.name: tool for tool in map(_made, entries)}
        own = [] if functions is None else _functions(functions)
        self._functions = ToolsEpisode({}, own)
        schemas = [tool.get_openai_tool_schema().model_dump(exclude_none=True) for tool in self._tools.values()]
        self.tools = [*schemas, *(self._functions.tools if own else ())]
        self._kwargs: Mapping[str, Any] = {}
        self._instances: dict[str, str] = {}

    async def start(self, row: Mapping[str, Any], prompt: Any) -> None:  # type: ignore[override]
        """Create an instance of each tool."""
        self._kwargs = (row.get("extra_info") or {}).get("tools_kwargs") or {}
        for name, tool in self._tools.items():
            created = await tool.create(**self._given(name, "create_kwargs"))
            self._instances[name] = created[0] if isinstance(created, tuple) else created

    async def reply(self, text: str, calls: Sequence[ToolCall]) -> Reply:  # type: ignore[override]
        """Return the results of the calls, in their order, cut to the length that verl allows."""
        messages, errors = [], 0
        for call in calls:
            if call.name in self._tools:
                result, failed = await self._executed(call)
            else:
                reply = self._functions.reply(text, [call])
                reply = await reply if inspect.isawaitable(reply) else reply
                result, failed = str(reply.messages[0]["content"]), bool(reply.errors)
            messages.append({"role": "tool", "name": call.name, "content": self._cut(result)})
            errors += failed
        return Reply(messages, errors=errors)

    async def close(self) -> None:  # type: ignore[override]
        """Release the instances."""
        for name, tool in self._tools.items():
            await tool.release(self._instances[name], **self._given(name, "release_kwargs"))

    def _given(self, name: str, what: str) -> Mapping[str, Any]:
        given: Mapping[str, Any] = (self._kwargs.get(name) or {}).get(what) or {}
        return given

    async def _executed(self, call: ToolCall) -> tuple[str, bool]:
        execute: Callable[..., Any] = self._tools[call.name].execute
        try:
            given = self._given(call.name, "execute_kwargs")
            response, *_ = await execute(self._instances[call.name], dict(call.arguments), **given)
        except Exception as error:
            return f"Error when executing tool: {error}", True
        return str(response if isinstance(response, str) else response.text or ""), False

    def _cut(self, text: str) -> str:
        longest = self._longest
        if not longest or len(text) <= longest:
            return text
        half = longest // 2
        if self._side == "left":
            return text[:longest] + "...(truncated)"
        if self._side == "right":
            return "(truncated)..." + text[-longest:]
        return text[:half] + "...(truncated)..." + text[-half:]


def _made(entry: Mapping[str, Any]) -> Any:
    """Return the tool of an entry. Raises ConfigError: it is none, or verl is not installed."""
    try:
        module, _, name = str(entry["class_name"]).rpartition(".")
        schemas = importlib.import_module("verl.tools.schemas")
        schema = schemas.OpenAIFunctionToolSchema.model_validate(entry["tool_schema"])
        return getattr(importlib.import_module(module), name)(config=entry.get("config") or {}, tool_schema=schema)
    except (ImportError, AttributeError, KeyError) as error:
        raise ConfigError(f"the tool {entry.get('class_name')} cannot be made: {error}") from error


def _functions(file: str) -> list[Callable[..., Any]]:
    """Return the functions that a file defines, without those that begin with an underscore."""
    module = import_file(file)
    found = inspect.getmembers(module, inspect.isfunction)
    return [function for name, function in found if function.__module__ == module.__name__ and name[0] != "_"]
