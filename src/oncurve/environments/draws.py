"""Random numbers of the calls of environments, and the event loop in which their coroutines run next to each other."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import coroutine
from typing import Any

_one_at_a_time = threading.Lock()
_loops: list[Any] = []


class Draws:
    """Python's and numpy's global generators as one call has them, whatever runs between its parts: `with draws: ...`.

    seed   of the first part; the others go on where the part before has ended
    """

    def __init__(self, seed: int) -> None:
        self._resumed = [partial(seed_all, seed)]

    def __enter__(self) -> None:
        _one_at_a_time.acquire()
        for resume in self._resumed:
            resume()

    def __exit__(self, *_: object) -> None:
        numpy = sys.modules.get("numpy")
        self._resumed = [partial(random.setstate, random.getstate())]
        self._resumed += [] if numpy is None else [partial(numpy.random.set_state, numpy.random.get_state())]
        _one_at_a_time.release()


def seed_all(seed: int) -> None:
    """Seed Python's and numpy's global generators."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


_drawing: ContextVar[Draws] = ContextVar("draws")


def run(called: Coroutine[Any, Any, Any], draws: Draws) -> Future[Any]:
    """Begin to run a coroutine in the event loop, which has a thread of its own. It and its tasks have these draws."""
    import asyncio  # here: it takes long to import, and few environments need it

    def forever() -> None:
        while True:  # a coroutine may end the loop: sys.exit
            with suppress(BaseException):
                _loops[0].run_forever()

    def task(loop: Any, inner: Any, **named: Any) -> Any:
        return asyncio.Task(_drawn(inner), loop=loop, **named)

    if not _loops:
        _loops.append(asyncio.new_event_loop())
        _loops[0].set_task_factory(task)
        threading.Thread(target=forever, daemon=True).start()
    _drawing.set(draws)
    return asyncio.run_coroutine_threadsafe(called, _loops[0])


async def _drawn(inner: Any) -> Any:
    return await _parts(inner)


@coroutine
def _parts(inner: Any) -> Generator[Any, Any, Any]:
    """Run a coroutine, each of whose parts has the draws of its call."""
    draws, resume, value = _drawing.get(), inner.send, None
    while True:
        with draws:
            try:
                waits = resume(value)
            except StopIteration as end:
                return end.value
        try:
            resume, value = inner.send, (yield waits)
        except BaseException as thrown:
            resume, value = inner.throw, thrown
