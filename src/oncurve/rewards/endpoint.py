"""One request to an OpenAI-compatible endpoint: under a deadline, tried again while that can help.

Covered: slow and dripping answers, refused and broken connections, 429 and 5xx with `Retry-After`, answers that are no
JSON, redirects (refused, because they would carry the key elsewhere), keys in messages (replaced).
Not covered: streaming, several answers to one request.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from oncurve.errors import RewardError

FIRST_WAIT_SECONDS = 0.5
LARGEST_BYTES = 16 << 20
HOPELESS = {401: "the key is missing or wrong", 403: "the key may not use it", 404: "the path or the model is unknown"}
TEMPORARY = {408, 409, 425, 429}


class Unanswered(Exception):  # noqa: N818 - a result that the caller turns into a fault
    """There is no answer. `kind` of the fault: "timeout" or "exception"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Temporary(Exception):  # noqa: N818
    """Another try may succeed, after `seconds` at least."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True)
class Answer:
    """A model's answer: its `text`, and the tokens of request and answer; None where the endpoint does not count."""

    text: str
    tokens: int | None


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint: the `url` that ends before `/chat/completions`, a `key` or None, tries in addition to the first."""

    url: str
    key: str | None = field(default=None, repr=False)
    retries: int = 4
    _open: OpenerDirector = field(default_factory=_opener, repr=False, compare=False)

    def answer(self, body: Mapping[str, Any], seconds: float, stopped: Event) -> Answer:
        """The answer to a request, within `seconds`; waits between tries end when `stopped` is set.

        Raises Unanswered, and RewardError where every request would be refused: an unknown path, a wrong key.
        """
        deadline = time.monotonic() + seconds
        data = json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            try:
                return self._once(data, deadline)
            except Temporary as error:
                wait = max(error.seconds, FIRST_WAIT_SECONDS * 2**attempt)
                tries = f"{attempt + 1} {'try' if attempt == 0 else 'tries'}"
                if time.monotonic() + wait >= deadline:
                    raise Unanswered("timeout", f"no answer within {seconds:g} s ({tries}): {error}") from None
                if attempt == self.retries or stopped.wait(wait):
                    raise Unanswered("exception", f"no answer after {tries}: {error}") from None
        raise AssertionError("the last try returns or raises")

    def check(self, seconds: float) -> str | None:
        """Why nothing can be asked here: no connection, a refused key; None: something answers."""
        try:
            with self._open.open(self._request("/models"), timeout=seconds) as response:
                response.read1(1)
        except HTTPError as error:
            error.close()
            return f"{self.url} refuses: {error.code}, {HOPELESS[error.code]}" if error.code in (401, 403) else None
        except (OSError, http.client.HTTPException) as error:
            return f"nothing answers at {self.url} ({self._reason(error)})"
        return None

    def _request(self, path: str, data: bytes | None = None) -> Request:
        headers = {"Content-Type": "application/json", "User-Agent": "oncurve"}
        request = Request(self.url + path, data, headers)
        if self.key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        return request

    def _once(self, data: bytes, deadline: float) -> Answer:
        try:
            with self._open.open(self._request("/chat/completions", data), timeout=_left(deadline)) as response:
                return _read(_body(response, deadline))
        except HTTPError as error:
            with error:
                raise self._refused(error, deadline) from None
        except (OSError, http.client.HTTPException, EOFError) as error:  # connection, name, TLS, time
            raise Temporary(self._reason(error)) from None

    def _refused(self, error: HTTPError, deadline: float) -> Exception:
        try:
            said = " ".join(_body(error, deadline).decode("utf-8", "replace").split())[:300]
        except (OSError, http.client.HTTPException, Temporary):
            said = ""
        message = self._without_key(f"{error.code} {error.reason}{': ' * bool(said)}{said}")
        if error.code in HOPELESS:
            return RewardError(f"{self.url} refuses every request: {HOPELESS[error.code]} ({message})")
        if error.code in TEMPORARY or error.code >= 500:
            return Temporary(message, _retry_after(error.headers))
        return Unanswered("exception", message)

    def _reason(self, error: BaseException) -> str:
        reason = getattr(error, "reason", error)
        return self._without_key(str(getattr(reason, "strerror", None) or reason) or type(error).__name__)

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _body(response: Any, deadline: float) -> bytes:
    """The whole body. Raises Temporary: the deadline passes, however slowly bytes arrive, or it is too large."""
    found = bytearray()
    while piece := response.read1(1 << 16):
        found += piece
        if time.monotonic() >= deadline:
            raise Temporary("the answer had begun and did not end")
        if len(found) > LARGEST_BYTES:
            raise Temporary(f"the answer has more than {LARGEST_BYTES >> 20} MiB")
    if getattr(response, "length", None):  # read1 does not say that bytes are missing
        raise Temporary("the connection ended before the answer")
    return bytes(found)


def _read(body: bytes) -> Answer:
    """The answer in a body. Raises Temporary: it is no chat completion, as a proxy's page is none."""
    try:
        found = json.loads(body)
        text = found["choices"][0]["message"]["content"]
        usage = found.get("usage") or {}
        tokens = usage.get("total_tokens")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise Temporary(f"not a chat completion: {body[:200].decode('utf-8', 'replace')!r}") from None
    if text is not None and not isinstance(text, str):
        raise Temporary(f"the answer's content is a {type(text).__name__}")
    return Answer(text or "", tokens if isinstance(tokens, int) and tokens >= 0 else None)


def _retry_after(headers: Message) -> float:
    """The seconds of a `Retry-After` header; 0 where there is none, or a date."""
    said = headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 6 else 0.0
