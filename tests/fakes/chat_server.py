"""A real HTTP server that answers chat completions, as well or as badly as a test wants."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import Any, Self

from fakes.model_hub import Answering, serving


@dataclass(frozen=True)
class Says:
    """One answer: a chat completion with this `content`, or `raw` bytes; slowly, in drips, or cut off."""

    content: Any = '{"score": 0.5}'
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    wait_seconds: float = 0.0
    drip_seconds: float = 0.0
    cut: bool = False
    tokens: int | None = 10

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        usage = {} if self.tokens is None else {"usage": {"total_tokens": self.tokens}}
        return json.dumps({"choices": [{"message": {"role": "assistant", "content": self.content}}], **usage}).encode()


class ChatServer:
    """`says(message, number)` decides the answer to try number 0, 1, ... of a message; `asked` are all requests."""

    def __init__(self, says: Callable[[str, int], Says] = lambda message, number: Says()) -> None:
        self.says = says
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.at_once = self.most_at_once = 0
        self._lock = Lock()
        server = self

        class Handler(Answering, BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(404)

            def do_POST(self) -> None:
                with suppress(OSError):  # the client has gone
                    server._answer(self)

        self._serving = serving(Handler)

    @property
    def messages(self) -> list[str]:
        return [body["messages"][-1]["content"] for _, _, body in self.asked]

    def _answer(self, handler: Answering) -> None:
        body = json.loads(handler.body())
        message = body["messages"][-1]["content"]
        with self._lock:
            number = self.messages.count(message)
            self.asked.append((handler.path, dict(handler.headers), body))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        said = self.says(message, number)
        time.sleep(said.wait_seconds)
        with self._lock:
            self.at_once -= 1
        content = said.body()
        handler.send_response(said.status)
        for name, value in said.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if said.cut:
            content = content[: len(content) // 2]
        for start in range(0, len(content), 1 if said.drip_seconds else max(1, len(content))):
            handler.wfile.write(content[start : start + (1 if said.drip_seconds else len(content))])
            time.sleep(said.drip_seconds)

    def __enter__(self) -> Self:
        self.url = f"{self._serving.__enter__()}/v1"
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)
