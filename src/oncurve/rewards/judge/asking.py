"""Requests on several threads: those of one scoring begin when a group is submitted, and are collected at its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Event, Thread
from typing import Any

from oncurve.base.closing import Closing
from oncurve.processes import kind_of_fault, last_words
from oncurve.processes.pool import Reply

_TURN_SECONDS = 60.0

Request = tuple[str, Mapping[str, Any]]
"""A request's hash, under which equal requests are one, and its body."""


class Asking(Closing):
    """The items of one scoring. Single use; where it is closed before `replies`, no further request is sent.

    request       item -> its request
    known         hash -> the reply, where there is one already
    answer        request, and an event that is set when waiting is in vain -> the reply
    concurrency   the number of threads

    overlapped_seconds   time that all threads spent on it before `replies` was called
    """

    def __init__(
        self,
        request: Callable[[Any], Request],
        known: Callable[[str], Reply | None],
        answer: Callable[[Request, Event], Reply],
        concurrency: int,
    ) -> None:
        self._request, self._known, self._answer, self._concurrency = request, known, answer, concurrency
        self._changed = Condition()
        self._order: list[str | Reply] = []
        self._waiting: deque[Request] = deque()
        self._replies: dict[str, Reply | None] = {}
        self._begun: dict[str, float] = {}
        self._threads = 0
        self._stopped = Event()
        self._error: BaseException | None = None
        self._seconds = 0.0
        self.overlapped_seconds = 0.0

    def add(self, items: Sequence[Any]) -> None:
        """Begin with these items."""
        for item in items:
            try:
                key, body = self._request(item)
            except Exception as error:  # a template of the user's may raise anything
                self._order.append(Reply(None, kind_of_fault(error), last_words(error)))
                continue
            self._order.append(key)
            with self._changed:
                if key in self._replies:
                    continue
                self._replies[key] = self._known(key)
                if self._replies[key] is not None:
                    continue
                self._waiting.append((key, body))
                if self._threads < self._concurrency:
                    self._threads += 1
                    Thread(target=self._work, daemon=True).start()

    def replies(self) -> list[Reply]:
        """Return one reply per item, in order. Raises the error that ended the asking, after the requests on their
        way.
        """
        with self._changed:
            now = time.monotonic()
            self.overlapped_seconds = self._seconds + sum(now - begun for begun in self._begun.values())
            while not self._changed.wait_for(lambda: self._threads == 0, _TURN_SECONDS):
                pass  # each request has a limit of its own
            if self._error is not None:
                raise self._error
            found = [self._replies[each] if isinstance(each, str) else each for each in self._order]
        return [reply for reply in found if reply is not None]

    def close(self) -> None:
        """Send no further request; what is on its way is not waited for."""
        self._stopped.set()

    def _next(self) -> Request | None:
        with self._changed:
            if self._waiting and self._error is None and not self._stopped.is_set():
                key, body = self._waiting.popleft()
                self._begun[key] = time.monotonic()
                return key, body
            self._threads -= 1
            self._changed.notify_all()
            return None

    def _work(self) -> None:
        while (request := self._next()) is not None:
            reply, error = None, None
            try:
                reply = self._answer(request, self._stopped)
            except BaseException as raised:  # it is raised again in the caller's thread
                error = raised
            with self._changed:
                self._replies[request[0]] = reply
                self._seconds += time.monotonic() - self._begun.pop(request[0])
                self._error = self._error or error
