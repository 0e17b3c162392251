"""Event loops, each in a thread of its own."""

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


@functools.cache
def event_loop(process: int, name: str, task_factory: Callable[..., Any] | None = None) -> Any:
    """Return the event loop of this name in the process with this id, which makes its tasks by `task_factory`.

    It runs as long as the process does. A fork has no threads, so it needs a loop of its own.
    """
    import asyncio  # here: it is slow to import, and few functions need it

    loop = asyncio.new_event_loop()
    loop.set_task_factory(task_factory)

    def forever() -> None:
        while True:  # a coroutine may end the loop: sys.exit
            with suppress(BaseException):
                loop.run_forever()

    threading.Thread(target=forever, name=name, daemon=True).start()
    return loop
