"""How long a worker may take for a shard."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque

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
