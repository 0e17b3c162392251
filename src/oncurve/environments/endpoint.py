"""An OpenAI-compatible address on this machine, at which programs call the policy.

    POST /v1/chat/completions     messages, tools, stream, max_tokens, stop; n = 1
    GET  /v1/models
    POST /v1/reward               {"reward": 1.0}, of the episode whose key calls

Each episode has a key of its own. A call waits in the queue of its episode until the policy has written the answer.

Covered: calls that are no JSON or no chat, unknown keys, streams. Not covered: images, audio, log-probs, the Responses
API.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError

MODEL = "policy"
BEGUN = "begun"
_LARGEST_BODY = 16 << 20
_STOPS = 4
_END_SECONDS = 5.0
_SET_BY_THE_RUN: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "seed": (None,),
    "tool_choice": (None, "auto"),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
}
"""Arguments of a call that the run decides, each with the values that ask for nothing else."""


class RefusedError(Exception):
    """A call that cannot be answered: its arguments are a sentence, and OpenAI's name for such a mistake."""


@dataclass(frozen=True)
class Asked:
    """A call as it was read: `messages` have plain texts, and arguments of tools as objects.

    ignored   arguments of the call that have no effect
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[Any, ...] = ()
    most: int | None = None
    stop: tuple[str, ...] = ()
    ignored: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Call:
    """A call that waits: `answer(status, content)` answers it. `again`: the client repeats one that it has given up."""

    asked: Asked
    answer: Callable[[int, Mapping[str, Any]], None]
    again: bool = False


@dataclass(frozen=True, eq=False)
class Line:
    """The side of the run of one episode: its `key`, and what happens to it in the order in which it happens.

    events   `BEGUN`, a `Call`, a reward that was posted; None: the program has ended
    """

    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)


def error(sentence: str, code: str) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    return {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": code}}


def read_call(body: Any) -> Asked:
    """Return what a call asks. Raises RefusedError."""
    try:
        messages = tuple(_message(each) for each in body["messages"])
        if not messages:
            raise ValueError("messages are empty")
        if (body.get("n") or 1) != 1:
            raise ValueError("n must be 1: make as many calls as you want answers")
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        if most is not None and (type(most) is not int or most < 1):
            raise ValueError("max_tokens must be a whole number of at least 1")
        stop = body.get("stop") or ()
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if len(stop) > _STOPS or not all(isinstance(each, str) and each for each in stop):
            raise ValueError(f"stop must be at most {_STOPS} texts, none empty")
        tools = tuple(body.get("tools") or ())
        if not all(isinstance(each["function"]["name"], str) for each in tools):
            raise ValueError("each tool needs a function with a name")
    except KeyError as missing:
        raise RefusedError(f"the call lacks {missing}", "invalid_request") from missing
    except (TypeError, ValueError, AttributeError, RecursionError) as wrong:
        raise RefusedError(f"the call cannot be read: {wrong}", "invalid_request") from wrong
    ignored = {name: body[name] for name, usual in _SET_BY_THE_RUN.items() if body.get(name) not in usual}
    if body.get("temperature") is not None:
        ignored["temperature"] = body["temperature"]
    return Asked(messages, tools, most, stop, ignored)


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with plain text, and with the arguments of its tool calls as objects. Raises ValueError."""
    content = given.get("content")
    parts = [] if content is None else [content] if isinstance(content, str) else content
    texts = [part if isinstance(part, str) else part.get("text", part.get("refusal")) for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("content must be text; images and audio are not supported")
    role = {"developer": "system"}.get(given["role"], given["role"])
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"the role {role!r} is unknown")
    found: dict[str, Any] = {"role": role, "content": "".join(texts)}
    found |= {name: str(given[name]) for name in ("name", "tool_call_id") if given.get(name)}
    if given.get("tool_calls"):
        found["tool_calls"] = [_tool_call(each) for each in given["tool_calls"]]
    return found


def _tool_call(given: Mapping[str, Any]) -> dict[str, Any]:
    function = given["function"]
    arguments = json.loads(function.get("arguments") or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a tool call must be an object")
    return {
        "type": "function",
        "id": str(given["id"]),
        "function": {"name": str(function["name"]), "arguments": arguments},
    }


def answered(message: Mapping[str, Any], ended: str, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """Return a completion of one choice. `message` has its tool calls as OpenAI writes them."""
    reason = "tool_calls" if message.get("tool_calls") else "length" if ended == "length" else "stop"
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
        },
    }


async def _streamed(content: Mapping[str, Any], usage: bool) -> AsyncIterator[str]:
    """Return a completion as server-sent events."""
    base = {**content, "object": "chat.completion.chunk"}
    counted, (choice,) = base.pop("usage"), base.pop("choices")
    message = choice["message"]
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": message["content"] or ""}]
    deltas += [{"tool_calls": [call]} for call in calls]
    for delta in [*deltas, {}]:
        reason = None if delta else choice["finish_reason"]
        one = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield f"data: {json.dumps({**base, 'choices': [one]})}\n\n"
    if usage:
        yield f"data: {json.dumps({**base, 'choices': [], 'usage': counted})}\n\n"
    yield "data: [DONE]\n\n"


class EndpointServer(Closing):
    """The server, in a thread of this process. Raises ConfigError: starlette or uvicorn is not installed."""

    def __init__(self) -> None:
        try:
            import uvicorn  # here: an extra
            from starlette.applications import Starlette
            from starlette.routing import Route
        except ImportError as missing:
            raise ConfigError(
                f'environment.kind: "endpoint" needs starlette and uvicorn ({missing}); install them with: '
                "pip install 'oncurve[endpoint]'"
            ) from missing
        self._lines: dict[str, Line] = {}
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                *(Route(path, self._reward, methods=["POST"]) for path in ("/reward", "/v1/reward")),
                Route("/v1/begin", self._begin, methods=["POST"]),
            ]
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="critical"
        )
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()

    def open(self) -> Line:
        """Return a line with a new key."""
        line = Line()
        self._lines[line.key] = line
        return line

    def shut(self, line: Line) -> None:
        """Refuse the key from now on, and the calls that wait. Twice is allowed."""
        self._lines.pop(line.key, None)
        while not line.events.empty():
            event = line.events.get()
            if isinstance(event, Call):
                event.answer(400, error("the episode is over", "episode_over"))

    def close(self) -> None:
        """End the server. Twice is allowed."""
        for line in list(self._lines.values()):
            self.shut(line)
        self._server.should_exit = True
        self._thread.join(_END_SECONDS)

    async def _asked(self, request: Any) -> tuple[Line, Any]:
        """Return the line that a request's key names, and its JSON. Raises RefusedError."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        line = self._lines.get(key)
        if line is None:
            raise RefusedError("this key names no episode that is being played", "invalid_api_key")
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > _LARGEST_BODY:
                raise RefusedError(f"a call has at most {_LARGEST_BODY} bytes", "invalid_request")
        try:
            return line, json.loads(data or b"null")
        except (ValueError, RecursionError) as wrong:
            raise RefusedError(f"the body is not JSON: {wrong}", "invalid_request") from wrong

    async def _chat(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, StreamingResponse

        try:
            line, body = await self._asked(request)
            asked = read_call(body)
        except RefusedError as refused:
            return _refusal(refused)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[int, Mapping[str, Any]]] = loop.create_future()

        def settle(status: int, content: Mapping[str, Any]) -> None:
            if not future.done():
                future.set_result((status, content))

        def answer(status: int, content: Mapping[str, Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, status, content)

        line.events.put(Call(asked, answer, request.headers.get("x-stainless-retry-count", "0") != "0"))
        status, content = await future
        if status != 200 or not body.get("stream"):
            return JSONResponse(content, status)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(_streamed(content, usage), media_type="text/event-stream")

    async def _reward(self, request: Any) -> Any:
        return await self._told(request, lambda body: float(body["reward"] if isinstance(body, dict) else body))

    async def _begin(self, request: Any) -> Any:
        return await self._told(request, lambda body: BEGUN)

    async def _told(self, request: Any, event: Callable[[Any], Any]) -> Any:
        from starlette.responses import JSONResponse

        try:
            line, body = await self._asked(request)
            found = event(body)
            if isinstance(found, float) and not math.isfinite(found):
                raise ValueError("it is not finite")
        except RefusedError as refused:
            return _refusal(refused)
        except (TypeError, ValueError, KeyError) as wrong:
            return _refusal(RefusedError(f'write {{"reward": 1.0}}: {wrong}', "invalid_request"))
        line.events.put(found)
        return JSONResponse({"ok": True})

    async def _models(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "oncurve"}]})


def _refusal(refused: RefusedError) -> Any:
    from starlette.responses import JSONResponse

    sentence, code = refused.args
    return JSONResponse(error(sentence, code), 401 if code == "invalid_api_key" else 400)


def told_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tool calls as OpenAI writes them: with their arguments as text."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in calls
    ]
