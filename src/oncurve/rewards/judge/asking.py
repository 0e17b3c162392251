"""Asking an OpenAI-compatible endpoint: one request under a deadline, many at once, and the answers, kept.

Covered: refused and broken connections, 429 and 5xx with `Retry-After`, answers that are no JSON, redirects (refused,
because they would carry the key elsewhere), keys in messages (replaced); `oncurve.base.web` has the deadline.
Not covered: streaming, several answers to one request.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import RewardError
from oncurve.base.web import WebAnswer, answer_to, ask, begun
from oncurve.durable import AppendLog, read_log
from oncurve.processes import kind_of_fault, last_words
from oncurve.processes.pool import WorkerReply

FIRST_WAIT_SECONDS = 0.5
HOPELESS = {401: "the key is missing or wrong", 403: "the key may not use it", 404: "the path or the model is unknown"}
TEMPORARY = {408, 409, 425, 429}


class Unanswered(Exception):  # noqa: N818 - a result that the caller turns into a fault
    """There is no answer. Its arguments are the kind of the fault, "timeout" or "exception", and a message."""


class Temporary(Exception):  # noqa: N818
    """Another try may succeed, after `seconds` at least."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


Answer = tuple[str, int | None]
"""The text of a model's answer, and the tokens of request and answer; None where the endpoint does not count."""


@dataclass(frozen=True)
class RemoteModel:
    """An endpoint: the `url` that ends before `/chat/completions`, a `key` or None, tries in addition to the first."""

    url: str
    key: str | None = field(default=None, repr=False)
    retries: int = 4

    async def answer(self, body: Mapping[str, Any], seconds: float) -> Answer:
        """Return the answer to a request, within `seconds`.

        Raises Unanswered, and RewardError where every request would be refused: an unknown path, a wrong key.
        """
        deadline = time.monotonic() + seconds
        data = json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            try:
                return await self._once(data, deadline)
            except Temporary as error:
                pause = max(error.seconds, FIRST_WAIT_SECONDS * 2**attempt)
                tries = f"{attempt + 1} {'try' if attempt == 0 else 'tries'}"
                if time.monotonic() + pause >= deadline:
                    raise Unanswered("timeout", f"no answer within {seconds:g} s ({tries}): {error}") from None
                if attempt == self.retries:
                    raise Unanswered("exception", f"no answer after {tries}: {error}") from None
                await asyncio.sleep(pause)
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

    async def _once(self, data: bytes, deadline: float) -> Answer:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            answer = await answer_to("POST", self.url + "/chat/completions", data, self._headers(), seconds=left)
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
    return text or "", tokens if isinstance(tokens, int) and tokens >= 0 else None


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a `Retry-After` header; 0 where there is none, or a date."""
    said = headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 6 else 0.0


Request = tuple[str, Mapping[str, Any]]
"""A request's hash, under which equal requests are one, and its body."""


class Asking(Closing):
    """The items of one scoring. Single use; what is on its way when it is closed is given up.

    request       item -> its request
    known         hash -> the reply, where there is one already
    answer        request -> the reply
    concurrency   the most requests at once

    overlapped_seconds   time that all requests took before `replies` was called
    """

    def __init__(
        self,
        request: Callable[[Any], Request],
        known: Callable[[str], WorkerReply | None],
        answer: Callable[[Request], Coroutine[Any, Any, WorkerReply]],
        concurrency: int,
    ) -> None:
        self._request, self._known, self._answer = request, known, answer
        self._free = asyncio.Semaphore(concurrency)
        self._order: list[str | WorkerReply] = []
        self._replies: dict[str, WorkerReply | Future[WorkerReply]] = {}
        self._begun: dict[str, float] = {}
        self._error: BaseException | None = None
        self._seconds = self.overlapped_seconds = 0.0

    def add(self, items: Sequence[Any]) -> None:
        """Begin with these items."""
        for item in items:
            try:
                request = self._request(item)
            except Exception as error:  # a template of the user's may raise anything
                self._order.append(WorkerReply(None, kind_of_fault(error), last_words(error)))
                continue
            self._order.append(request[0])
            if request[0] not in self._replies:
                self._replies[request[0]] = self._known(request[0]) or begun(self._asked(request))

    async def _asked(self, request: Request) -> WorkerReply:
        async with self._free:
            if self._error is not None:
                raise self._error
            self._begun[request[0]] = time.monotonic()
            try:
                return await self._answer(request)
            except Exception as error:
                self._error = self._error or error
                raise
            finally:
                self._seconds += time.monotonic() - self._begun.pop(request[0])

    def replies(self) -> list[WorkerReply]:
        """Return one reply per item, in order. Raises the error that ended the asking, after the requests on their
        way.
        """
        now = time.monotonic()
        self.overlapped_seconds = self._seconds + sum(now - since for since in list(self._begun.values()))
        wait(self._futures())
        found = (self._replies[each] if isinstance(each, str) else each for each in self._order)
        return [each.result() if isinstance(each, Future) else each for each in found]

    def close(self) -> None:
        """Send no further request, and wait for none."""
        for future in self._futures():
            future.cancel()

    def _futures(self) -> list[Future[WorkerReply]]:
        return [each for each in self._replies.values() if isinstance(each, Future)]


class Replies(Closing):
    """The answers by the hash of their request, with what they cost. Requests are made in one event loop.

    parse          an answer's text -> its reply: a value, or a fault
    max_requests   the number of answered requests, over the whole run, above which none is sent; None: any
    max_tokens     the same for the tokens of requests and answers; those on their way may exceed it
    """

    def __init__(self, parse: Callable[[str], WorkerReply], max_requests: int | None, max_tokens: int | None) -> None:
        self._parse, self._max_requests, self._max_tokens = parse, max_requests, max_tokens
        self._known: dict[str, WorkerReply] = {}
        self._open = ExitStack()
        self._log: Any = None
        self._sent = 0
        self.requests = self.tokens = 0

    def keep_in(self, file: Path) -> None:
        """Take up the answers in `file`, if it exists, and append each new one. Raises StorageError."""
        for record in read_log(file, damaged=True) if file.exists() else ():
            if isinstance(record.get("key"), str) and isinstance(record.get("text"), str):
                self._take(record["key"], record["text"], record.get("tokens"))
        self._log = self._open.enter_context(AppendLog(file))

    def get(self, key: str) -> WorkerReply | None:
        """Return the reply to a request, if it has been answered."""
        return self._known.get(key)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request that is sent. Raises RewardError: it would exceed a limit."""
        spent = f"{self.requests:,} requests and {self.tokens:,} tokens"
        spent += f", {self._sent} on their way" if self._sent else ""
        for name, limit, used in (
            ("max_requests", self._max_requests, self.requests + self._sent),
            ("max_total_tokens", self._max_tokens, self.tokens),
        ):
            if limit is not None and used >= limit:
                raise RewardError(
                    f"the spending limit is reached: {name} = {limit:,}; answered so far: {spent}. The run goes on "
                    f"with a higher one: oncurve resume DIR rewards.0.{name}=NUMBER"
                )
        self._sent += 1
        try:
            yield
        finally:
            self._sent -= 1

    def add(self, key: str, text: str, tokens: int | None) -> WorkerReply:
        """Keep an answer, and its reply. Raises StorageError, RewardError: nothing says what it cost."""
        if tokens is None and self._max_tokens is not None:
            raise RewardError(
                "the endpoint does not say how many tokens a request cost (usage.total_tokens), so max_total_tokens "
                "cannot be kept; set max_requests in its place"
            )
        if self._log is not None:
            self._log.append({"key": key, "text": text, "tokens": tokens})
        return self._take(key, text, tokens)

    def _take(self, key: str, text: str, tokens: Any) -> WorkerReply:
        self._known[key] = self._parse(text)
        self.requests += 1
        self.tokens += tokens if isinstance(tokens, int) else 0
        return self._known[key]

    def close(self) -> None:
        """Close the file."""
        self._log = None
        self._open.close()
