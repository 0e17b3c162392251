"""One HTTP request under one deadline, which no byte of the answer renews.

    answer = ask("POST", "https://host/v1/chat/completions", body, {"Authorization": "Bearer ..."}, seconds=60)
    answer = await answer_to("POST", ...)     the same in a coroutine

Covered: names that are not found in time, proxies of the environment, TLS, interim answers, chunks and trailers that
drip or never end; the size of an answer has a limit.
Not covered: redirects (they are answers like others), cookies, compressed answers, HTTP/2.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from oncurve.base.event_loop import event_loop

LARGEST_BYTES = 16 << 20
_END_SECONDS = 5.0  # for closing what is late
Result = TypeVar("Result")


@dataclass(frozen=True)
class WebAnswer:
    """The answer to a request, whatever its status."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def begun(called: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Begin to run a coroutine that waits for answers, next to the others of this process."""
    return asyncio.run_coroutine_threadsafe(called, event_loop(os.getpid(), "web"))


async def answer_to(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float,
    largest: int = LARGEST_BYTES,
    proxies: bool = True,
) -> WebAnswer:
    """Return the whole answer to a request.

    largest   the most bytes of its body; 0: the body is not read
    proxies   whether the proxies that the environment names are used

    Raises TimeoutError: it has not ended within `seconds`. ConnectionError: there is none, for the reason it says.
    """
    import httpx2  # here: most commands send no request

    sent = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "oncurve", **(headers or {})}
    found = bytearray()
    try:
        async with AsyncExitStack() as connections:

            async def opened(event: str, about: Mapping[str, Any]) -> None:
                if event == "connection.connect_tcp.complete":  # a TLS handshake that is cancelled would leave it open
                    connections.push_async_callback(about["return_value"].aclose)

            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(
                    verify=_authorities(), proxy=_proxy(url) if proxies else None, trust_env=False, timeout=None
                ) as client,
                client.stream(method, url, content=body, headers=sent, extensions={"trace": opened}) as answer,
            ):
                if largest:
                    async for piece in answer.aiter_raw():
                        found += piece
                        if len(found) > largest:
                            raise ConnectionError(f"the answer has more than {largest >> 20} MiB")
                return WebAnswer(answer.status_code, answer.reason_phrase, answer.headers, bytes(found))
    except Exception as error:  # what arrives decides which
        causes = _causes(error)
        if any(isinstance(each, TimeoutError) for each in causes):
            raise TimeoutError(f"no whole answer within {seconds:.3g} s") from None
        raise ConnectionError(_reason(causes)) from None


def ask(*request: Any, seconds: float, **options: Any) -> WebAnswer:
    """Return what `answer_to` does, where nothing else is to be done meanwhile."""
    future = begun(answer_to(*request, seconds=seconds, **options))
    try:
        return future.result(seconds + _END_SECONDS)
    finally:
        future.cancel()  # where a signal has ended the wait


_authorities = cache(ssl.create_default_context)
"""The certificates that this system trusts; reading them takes 20 ms."""


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for `url`, or None."""
    address = urlsplit(url)
    if proxy_bypass(address.hostname or ""):
        return None
    found = getproxies().get(address.scheme)
    return found if not found or "//" in found else f"http://{found}"


def _causes(error: BaseException) -> list[BaseException]:
    """Return `error` and the errors that led to it, the last one first."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        found.append(cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause)
    return found


def _reason(causes: list[BaseException]) -> str:
    """Return what ended a request, in the system's words where there are any."""
    named = (ssl.SSLError, socket.gaierror)  # their numbers are not the system's
    said = [
        str(each.strerror) if isinstance(each, named) else os.strerror(each.errno)
        for each in causes
        if isinstance(each, OSError) and each.errno is not None
    ]
    return (said[-1] if said else str(causes[0])) or type(causes[0]).__name__
