"""For how long processes have had something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Busy:
    """The seconds of all processes together. Any thread may ask at any time; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._over = 0.0
        self._changing = threading.Lock()

    def begins(self, process: int) -> None:
        """`process` has something to do from now on; if it had before, nothing changes."""
        with self._changing:
            self._since.setdefault(process, self._clock())

    def ends(self, process: int) -> None:
        """It has nothing to do any more, or has ended."""
        with self._changing:
            now = self._clock()
            self._over += now - self._since.pop(process, now)

    def seconds(self) -> float:
        """Up to now."""
        with self._changing:
            now = self._clock()
            return self._over + sum(now - since for since in self._since.values())
