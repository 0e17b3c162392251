"""One request to an OpenAI-compatible endpoint: under a deadline, tried again while that can help.

Covered: refused and broken connections, 429 and 5xx with `Retry-After`, answers that are no JSON, redirects (refused,
because they would carry the key elsewhere), keys in messages (replaced); `oncurve.base.web` has the deadline.
Not covered: streaming, several answers to one request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from oncurve.base.errors import RewardError
from oncurve.base.web import WebAnswer, ask

FIRST_WAIT_SECONDS = 0.5
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


@dataclass(frozen=True)
class Endpoint:
    """An endpoint: the `url` that ends before `/chat/completions`, a `key` or None, tries in addition to the first."""

    url: str
    key: str | None = field(default=None, repr=False)
    retries: int = 4

    def answer(self, body: Mapping[str, Any], seconds: float, stopped: Event) -> Answer:
        """Return the answer to a request, within `seconds`; waits between tries end when `stopped` is set.

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
        """Return why nothing can be asked here: no connection, a refused key, or None if something answers."""
        try:
            answer = ask("GET", self.url + "/models", None, self._headers(), seconds=seconds, largest=0)
        except OSError as error:
            return f"nothing answers at {self.url} ({self._without_key(str(error))})"
        refused = answer.status in (401, 403)
        return f"{self.url} refuses: {answer.status}, {HOPELESS[answer.status]}" if refused else None

    def _headers(self) -> dict[str, str]:
        key = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return {"Content-Type": "application/json", **key}

    def _once(self, data: bytes, deadline: float) -> Answer:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            answer = ask("POST", self.url + "/chat/completions", data, self._headers(), seconds=left)
        except OSError as error:  # connection, name, TLS, time
            raise Temporary(self._without_key(str(error))) from None
        if not 200 <= answer.status < 300:
            raise self._refused(answer)
        return _read(answer.body)

    def _refused(self, answer: WebAnswer) -> Exception:
        said = " ".join(answer.body.decode("utf-8", "replace").split())[:300]
        message = self._without_key(f"{answer.status} {answer.reason}{': ' * bool(said)}{said}")
        if answer.status in HOPELESS:
            return RewardError(f"{self.url} refuses every request: {HOPELESS[answer.status]} ({message})")
        if answer.status in TEMPORARY or answer.status >= 500:
            return Temporary(message, _retry_after(answer.headers))
        return Unanswered("exception", message)

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _read(body: bytes) -> Answer:
    """Return the answer in a body. Raises Temporary: it is no chat completion, as a proxy's page is none."""
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


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a `Retry-After` header; 0 where there is none, or a date."""
    said = headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 6 else 0.0
