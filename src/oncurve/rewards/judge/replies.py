"""Answers of a model, kept in a file, so that a resumed run has the same rewards and pays for nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import RewardError
from oncurve.durable import AppendLog, read_log
from oncurve.processes.pool import Reply


class Replies(Closing):
    """The answers by the hash of their request, with what they cost. Used by several threads.

    parse          an answer's text -> its reply: a value, or a fault
    max_requests   the number of answered requests, over the whole run, above which none is sent; None: any
    max_tokens     the same for the tokens of requests and answers; those on their way may exceed it
    """

    def __init__(self, parse: Callable[[str], Reply], max_requests: int | None, max_tokens: int | None) -> None:
        self._parse, self._max_requests, self._max_tokens = parse, max_requests, max_tokens
        self._known: dict[str, Reply] = {}
        self._lock = Lock()
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

    def get(self, key: str) -> Reply | None:
        """Return the reply to a request, if it has been answered."""
        return self._known.get(key)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request that is sent. Raises RewardError: it would exceed a limit."""
        with self._lock:
            spent = f"{self.requests:,} requests and {self.tokens:,} tokens"
            spent += f", {self._sent} on their way" if self._sent else ""
            for name, limit, used in (
                ("max_requests", self._max_requests, self.requests + self._sent),
                ("max_total_tokens", self._max_tokens, self.tokens),
            ):
                if limit is not None and used >= limit:
                    raise RewardError(
                        f"the spending limit is reached: {name} = {limit:,}; answered so far: {spent}. Raise it (in "
                        "the run's config.toml, if the run is to go on), or leave it out"
                    )
            self._sent += 1
        try:
            yield
        finally:
            with self._lock:
                self._sent -= 1

    def add(self, key: str, text: str, tokens: int | None) -> Reply:
        """Keep an answer, and its reply. Raises StorageError, RewardError: nothing says what it cost."""
        if tokens is None and self._max_tokens is not None:
            raise RewardError(
                "the endpoint does not say how many tokens a request cost (usage.total_tokens), so max_total_tokens "
                "cannot be kept; set max_requests in its place"
            )
        with self._lock:
            if self._log is not None:
                self._log.append({"key": key, "text": text, "tokens": tokens})
            return self._take(key, text, tokens)

    def _take(self, key: str, text: str, tokens: Any) -> Reply:
        self._known[key] = self._parse(text)
        self.requests += 1
        self.tokens += tokens if isinstance(tokens, int) else 0
        return self._known[key]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._log = None
            self._open.close()
