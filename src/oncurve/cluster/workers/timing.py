"""Deadlines of shards, and the time for which workers have had something to do."""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from oncurve.rollout import Sampling

SHORTEST_DEADLINE, DEADLINE_MEDIANS = 60.0, 10.0
"""A worker has `DEADLINE_MEDIANS` times the median of earlier shards for one, and not less than so many seconds."""

_REMEMBERED = 64


class Deadlines:
    """The limits of shards by what earlier ones took, `longest` seconds at most and for the first."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._seconds: dict[tuple[int, int], deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def took(self, sampling: Sampling, seconds: float) -> None:
        """A shard that is sampled by these settings has taken so long."""
        self._seconds[sampling.group_size, sampling.max_new_tokens].append(seconds)

    def limit(self, sampling: Sampling) -> float:
        """The seconds that a worker has for a shard that is sampled by these settings."""
        earlier = self._seconds[sampling.group_size, sampling.max_new_tokens]
        if not earlier:
            return self._longest
        return min(self._longest, max(SHORTEST_DEADLINE, DEADLINE_MEDIANS * statistics.median(earlier)))


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
