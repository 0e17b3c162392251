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
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import uvicorn
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from oncurve.base.closing import Closing

MODEL = "policy"
OVER = "the episode is over"
_LARGEST_BODY = 16 << 20
_STOPS = 4
_SET_BY_THE_RUN = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "tool_choice", "logprobs")
_USUAL = (1, 0, "auto", False)


class RefusedError(Exception):
    """A call that cannot be answered: its arguments are a sentence, and OpenAI's code of such a mistake."""


@dataclass
class ChatCall:
    """A call that was made. Its `messages` have plain texts, and arguments of tools as objects.

    ignored   arguments of the call that have no effect.
    waiting   functions that answer the requests that wait for it.
    again     the client repeats a call that it has given up.
    row       the row whose next turn is its `answer`
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[Any, ...] = ()
    most: int | None = None
    stop: tuple[str, ...] = ()
    ignored: Mapping[str, Any] = field(default_factory=dict)
    waiting: list[Callable[[int, Mapping[str, Any]], object]] = field(default_factory=list, compare=False, repr=False)
    again: bool = field(default=False, compare=False, repr=False)
    row: Any = field(default=None, compare=False, repr=False)
    answer: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def settle(self, status: int, content: Mapping[str, Any]) -> None:
        """Answer those that wait."""
        while self.waiting:
            self.waiting.pop()(status, content)

    def refuse(self, sentence: str, code: str = "invalid_request") -> None:
        """Answer with an error as OpenAI's clients read it."""
        self.settle(400, _error(sentence, code))


@dataclass(frozen=True, eq=False)
class EpisodeLine(Closing):
    """The side of the run of one episode: its `key` at a server, and what happens to it in the order in which it
    happens.

    events   (the process of the program, a `ChatCall`, a reward that was posted, None: it begins); None: it has ended
    refused  why calls of it could not be read, or answered
    """

    server: EndpointServer
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    refused: list[str] = field(default_factory=list)
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def close(self) -> None:
        """Refuse the key from now on, and the calls that wait. Twice is allowed."""
        self.server.lines.pop(self.key, None)
        while not self.events.empty():
            _, said = self.events.get() or (None, None)
            if isinstance(said, ChatCall):
                said.refuse(OVER)


def _error(sentence: str, code: str) -> dict[str, Any]:
    return {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": code}}


def read_call(body: Any) -> ChatCall:
    """Return what a call asks. Raises RefusedError."""
    try:
        messages, tools = tuple(map(_message, body["messages"])), tuple(body.get("tools") or ())
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        stop = body.get("stop") or ()
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        rules = {
            "messages are empty": bool(messages),
            "n must be 1: make as many calls as you want answers": body.get("n") in (None, 1),
            "max_tokens must be a whole number of at least 1": most is None or (type(most) is int and most > 0),
            f"stop must be at most {_STOPS} texts": len(stop) <= _STOPS and all(type(e) is str and e for e in stop),
            "each tool needs a function with a name": all(type(each["function"]["name"]) is str for each in tools),
        }
        if not all(rules.values()):
            raise ValueError(next(rule for rule, held in rules.items() if not held))
    except (TypeError, ValueError, KeyError, AttributeError) as wrong:
        why = f"it lacks {wrong}" if isinstance(wrong, KeyError) else str(wrong)
        raise RefusedError(f"the call cannot be read: {why}", "invalid_request") from wrong
    given = {name: body[name] for name in _SET_BY_THE_RUN if body.get(name) is not None}
    ignored = {name: value for name, value in given.items() if name == "temperature" or value not in _USUAL}
    return ChatCall(messages, tools, most, stop, ignored)


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with plain text, and with the arguments of its tool calls as objects."""
    if not isinstance(given, Mapping):
        raise ValueError(f"a message has a role and a content, and this is {given!r:.60}")
    content = given.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"the content of a message must be a text, or parts of type text; got {content!r:.100}")
    role = {"developer": "system"}.get(given["role"], given["role"])
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"the role {role!r} is unknown")
    found: dict[str, Any] = {"role": role, "content": "".join(texts)}
    found |= {name: str(given[name]) for name in ("name", "tool_call_id") if given.get(name)}
    if given.get("tool_calls"):
        found["tool_calls"] = [_tool_call(each, from_json) for each in given["tool_calls"]]
    return found


def _tool_call(given: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a tool call whose arguments are converted: to text as OpenAI has them, or to an object."""
    function = {"name": str(given["function"]["name"]), "arguments": convert(given["function"]["arguments"])}
    return {"type": "function", "id": str(given["id"]), "function": function}


def answered(text: str, calls: Any, ended: str, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """Return a completion of one choice: a text, and tool calls with their arguments as objects."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message = {**message, "content": text or None, "tool_calls": [_tool_call(each, json.dumps) for each in calls]}
    reason = "tool_calls" if calls else "length" if ended == "length" else "stop"
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": "chat.completion", "created": int(time.time())}
    return {**head, "model": MODEL, "choices": [choice], "usage": counts}


async def _streamed(content: Mapping[str, Any], usage: bool) -> AsyncIterator[str]:
    """Return a completion as server-sent events."""
    base = {**content, "object": "chat.completion.chunk"}
    counts, (choice,) = base.pop("usage"), base.pop("choices")
    message = choice["message"]
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))]
    deltas = [{"role": "assistant", "content": message["content"] or ""}, *({"tool_calls": [call]} for call in calls)]
    for delta in [*deltas, {}]:
        one = {**choice, "message": None, "delta": delta, "finish_reason": None if delta else choice["finish_reason"]}
        yield f"data: {json.dumps({**base, 'choices': [one]})}\n\n"
    if usage:
        yield f"data: {json.dumps({**base, 'choices': [], 'usage': counts})}\n\n"
    yield "data: [DONE]\n\n"


class EndpointServer(Closing):
    """The server, in a thread of this process."""

    def __init__(self) -> None:
        self.lines: dict[str, EpisodeLine] = {}
        posts = {"/v1/chat/completions": self._chat, "/v1/reward": self._told, "/v1/begun": self._begun}
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        routes.append(Route("/v1/models", self._models))
        app = Starlette(routes=routes, exception_handlers={RefusedError: _refusal, 404: _unknown})
        quiet: Any = {"ws": "none", "lifespan": "off", "log_config": None, "log_level": "error"}
        self._server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **quiet))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()

    def open(self) -> EpisodeLine:
        """Return a line with a new key."""
        line = EpisodeLine(self)
        self.lines[line.key] = line
        return line

    def close(self) -> None:
        """End the server. Twice is allowed."""
        self._server.should_exit = True
        self._thread.join(5.0)

    async def _asked(self, request: Request) -> tuple[EpisodeLine, str, Any]:
        """Return the line and the process that a request's key names, and its JSON. Raises RefusedError."""
        key, _, process = request.headers.get("authorization", "").removeprefix("Bearer ").strip().partition(".")
        if key not in self.lines:
            raise RefusedError("this key names no episode that is being played", "invalid_api_key")
        request.state.line = line = self.lines[key]
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > _LARGEST_BODY:
                    raise ValueError(f"it has more than {_LARGEST_BODY} bytes")
            return line, process, from_json(data)  # which refuses deep nesting, and halves of characters
        except (ValueError, ClientDisconnect) as wrong:
            raise RefusedError(f"the body is not JSON: {wrong}", "invalid_request") from wrong

    async def _chat(self, request: Request) -> Response:
        line, process, body = await self._asked(request)
        call, loop = read_call(body), asyncio.get_running_loop()
        answer: asyncio.Future[tuple[int, Mapping[str, Any]]] = loop.create_future()

        def settle(*given: Any) -> None:
            if not answer.done():
                answer.set_result(given)

        call.waiting.append(partial(loop.call_soon_threadsafe, settle))
        call.again = request.headers.get("x-stainless-retry-count", "0") != "0"
        line.events.put((process, call))
        status, content = await answer
        if status != 200 or not body.get("stream"):
            return JSONResponse(content, status)
        usage = (body.get("stream_options") or {}).get("include_usage")
        return StreamingResponse(_streamed(content, bool(usage)), media_type="text/event-stream")

    async def _told(self, request: Request) -> Response:
        line, process, body = await self._asked(request)
        reward: Any = body.get("reward") if isinstance(body, dict) else body
        if type(reward) not in (int, float) or not math.isfinite(reward):
            raise RefusedError('a reward is written {"reward": 1.0}', "invalid_request")
        line.events.put((process, float(reward)))
        return JSONResponse({"ok": True})

    async def _begun(self, request: Request) -> Response:
        line, process, _ = await self._asked(request)
        line.events.put((process, None))
        return JSONResponse({"ok": True})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "oncurve"}]})


async def _unknown(request: Request, error: Any) -> Response:
    there = "the policy answers at /v1/chat/completions (OpenAI's Agents SDK: set_default_openai_api)"
    return JSONResponse(_error(f"there is no {request.url.path}; {there}", "unknown_url"), 404)


async def _refusal(request: Request, refused: Any) -> Response:
    sentence, code = refused.args
    if hasattr(request.state, "line"):
        request.state.line.refused.append(sentence)
    return JSONResponse(_error(sentence, code), 401 if code == "invalid_api_key" else 400)
