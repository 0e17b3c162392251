"""A short episode before a run, without a model, to see whether the environment's code works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from queue import Empty
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.environments.host import Host
from oncurve.processes.pool import WorkerReply

MADE_UP = "a made-up turn"


def rehearsed(host: Host, row: Mapping[str, Any], prompt: Any, check: Callable[[Any], object]) -> list[tuple[str, str]]:
    """Play one turn for a row; returns (role, text) of all that was said, and of what the environment gave.

    The policy's turn is made up, without a tool call. `check` is given what the environment says at the start.

    Raises ConfigError: the environment's code cannot be loaded, or fails in the way that is told. What `check` raises.
    """
    answers = host.about()["answers"]
    if host.settings.programs:
        return _called(host, row, prompt)
    opened = _asked(host, {"act": "start", "row": dict(row), "prompt": prompt})["said"]
    check(opened)
    said = [(role, _text(each)) for role, each in (("prompt", prompt), ("environment", opened)) if each]
    reply = _asked(host, {"act": "end"} if answers else {"act": "reply", "text": MADE_UP, "calls": []})
    said += [("assistant", MADE_UP), *((each["role"], _text(each["content"])) for each in reply.get("messages", ()))]
    outcome = (reply if "outcome" in reply else _asked(host, {"act": "end"}))["outcome"]
    return said + _numbers(reward=reply.get("reward"), outcome=outcome)


def _called(host: Host, row: Mapping[str, Any], prompt: Any) -> list[tuple[str, str]]:
    """Run a program whose calls get made-up answers. What it does after the first of them is no mistake of it."""
    from oncurve.environments.endpoint import ChatCall, EndpointServer, answered  # here: its packages are an extra

    host.ready()
    said, reply = list[tuple[str, str]](), WorkerReply(None, "timeout", "it made no call")
    with suppress(Empty), EndpointServer() as server:
        line = server.open()
        item = {"address": server.address, "key": line.key, "row": dict(row), "prompt": prompt, "seed": 0}
        with closing(host.begin(0, item, line.events)) as pending:
            while (event := line.events.get(timeout=host.settings.timeout_seconds)) is not None:
                if isinstance(call := event[1], ChatCall) and said:
                    call.refuse("an episode before a run has one call", "max_turns")
                elif isinstance(call, ChatCall):
                    said += [*((each["role"], each["content"]) for each in call.messages), ("assistant", MADE_UP)]
                    call.settle(200, answered(MADE_UP, (), "eos", 1, 1))
            reply = pending.replies()[0]
    if not said:
        why = "it made no call" if reply.fault is None else f"{reply.fault}: {reply.message.strip()}"
        raise ConfigError(f"environment: the program failed for the first row ({why})")
    return said + _numbers(outcome=None if reply.fault is not None else reply.value["outcome"])


def _numbers(**given: float | None) -> list[tuple[str, str]]:
    return [(name, f"{number:g}") for name, number in given.items() if number is not None]


def _asked(host: Host, item: dict[str, Any]) -> Any:
    reply = host.begin(0, {**item, "key": "trial", "seed": 0, "keep": False}).replies()[0]
    if reply.fault is not None:
        does = {"start": "its start", "reply": "its reply", "end": "its reward"}[item["act"]]
        raise ConfigError(f"environment: {does} failed for the first row ({reply.fault}):\n{reply.message.strip()}")
    return reply.value


def _text(content: Any) -> str:
    parts = [content] if isinstance(content, str) else content
    return "\n".join(str(p.get("content", p.get("text", p))) if isinstance(p, Mapping) else str(p) for p in parts)
