"""The server's application: the pages, the answers of a `Library`, and the wall in front of both."""

import re
import secrets
from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncurve.base.errors import OncurveError
from oncurve.base.output import visible
from oncurve.view.front import POLICY, TABLES, bundle, page, sheet
from oncurve.view.library import Library, encoded

OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?")
"""The names under which a browser on this machine, or at the other end of a tunnel, knows the server."""

PAGES: Mapping[str, tuple[Callable[[], str], str]] = {
    "/": (page, "text/html"),
    "/view.js": (bundle, "text/javascript"),
    "/view.css": (sheet, "text/css"),
}
"""What is given without the key: it is the same for every run, and holds nothing of one."""

_POLICY = POLICY.format(script="'self'", style="'self'", connect="'self'") + "; frame-ancestors 'none'"
HEADERS: dict[str, str] = {"Content-Security-Policy": _POLICY, **TABLES["headers"]}


def application(library: Library, key: str) -> ASGIApp:
    """Return the application that shows a library's runs to whoever has the `key`."""

    async def shown(request: Request) -> Response:
        content, kind = PAGES[request.url.path]
        return Response(content(), media_type=kind)

    async def asked(request: Request) -> Response:
        arguments = dict(request.query_params)
        try:
            found = await run_in_threadpool(library.answer, request.path_params["question"], arguments)
            return Response(encoded(found), media_type="application/json")
        except KeyError:
            return _refusal(404, "there is no such thing here")
        except ValueError as error:
            return _refusal(400, str(error))
        except OncurveError as error:
            return _refusal(409, str(error))

    routes = [Route(path, shown, methods=["GET"]) for path in PAGES]
    return RequestGuard(Starlette(routes=[*routes, Route("/api/{question}", asked, methods=["GET"])]), key)


class RequestGuard:
    """The wall: another host name, another origin, and all but the pages without the key are answered with 403."""

    def __init__(self, inner: ASGIApp, key: str) -> None:
        self._inner, self._key = inner, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever the answer, it carries the policy."""
        if scope["type"] != "http":
            return  # a websocket is closed, and there is nothing to start or to end

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = self._reason(scope["path"], Headers(scope=scope))
        inner = self._inner if reason is None else _refusal(403, reason)
        await inner(scope, receive, guarded)

    def _reason(self, path: str, headers: Headers) -> str | None:
        """Return why a request is refused, or None."""
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not OWN_HOST.fullmatch(host):
            return "this server answers to 127.0.0.1 and localhost alone"
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return "this server answers its own pages alone"
        if path in PAGES and (path == "/" or headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")):
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "this server answers its own pages alone"
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not secrets.compare_digest(given, self._key):
            return "the key is missing or of an earlier server: open the address that `oncurve view` printed"
        return None


def _refusal(status: int, reason: str) -> Response:
    return Response(encoded({"error": visible(reason)}), status, media_type="application/json")
