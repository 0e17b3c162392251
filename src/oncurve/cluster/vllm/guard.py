"""The middleware of a vLLM server, which lets no request through without the key.

vLLM compares the key (`VLLM_API_KEY`) on /v1 and /inference, and leaves open the routes that replace weights. This file
is copied to a folder where `vllm serve --middleware` finds it, and runs there without oncurve: it imports the standard
library alone.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any


class Guard:
    """An ASGI application around `app`. Requests with the key go to `app`, others are answered with 401."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app, self._key = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """Answer one request; a WebSocket without the key is closed by the server."""
        said = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if scope["type"] == "lifespan" or any(hmac.compare_digest(value, self._key) for value in said):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"the key of this server is missing"})
