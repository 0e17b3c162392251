"""The workers that play episodes, seen from the run: an episode stays with the worker in which it began."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from oncurve.base.closing import Closing
from oncurve.base.errors import DataError
from oncurve.environments.settings import EnvironmentSettings
from oncurve.processes.pool import Job, Reply, WorkerPool
from oncurve.rewards import Accepts, InProcess


class Pending(Protocol):
    """A reply that is being made."""

    def result(self) -> Reply:
        """Wait for it."""

    def cancel(self) -> object:
        """Give it up."""


class _InWorker:
    def __init__(self, pool: WorkerPool, item: Mapping[str, Any]) -> None:
        self._job: Job = pool.begin()
        self._job.add([item])

    def result(self) -> Reply:
        return self._job.replies()[0]

    def cancel(self) -> None:
        self._job.close()


class Host(Closing):
    """Plays episodes: `settings.processes` workers with one episode's call at a time each, or this process.

    The workers start with the first episode.
    """

    def __init__(self, settings: EnvironmentSettings, base: Path | None) -> None:
        self.settings, self._base = settings, base
        self._pools: list[WorkerPool] = []
        self._here: InProcess | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._about: Mapping[str, Any] = {}

    def about(self) -> Mapping[str, Any]:
        """Return the `tools` of the environment, and whether a turn without a call `answers`.

        Raises ConfigError: its code cannot be loaded.
        """
        if not self._pools and self._here is None:
            player = self.settings.here()
            if player is not None:
                self._here, self._about = InProcess(player, Accepts()), player.about
                self._thread = ThreadPoolExecutor(1, "oncurve-environment")
            else:
                self._pools = [self.settings.workers(self._base) for _ in range(self.settings.processes)]
                self._about = self._pools[0].about
        return self._about

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for pool in self._pools for pid in pool.pids]

    def begin(self, episode: int, item: Mapping[str, Any]) -> Pending:
        """Begin to make the reply to an item of the episode number `episode`. Raises DataError: it is not JSON."""
        if self._here is not None and self._thread is not None:
            here = self._here
            return self._thread.submit(lambda: here.run([item])[0])
        try:
            return _InWorker(self._pools[episode % len(self._pools)], item)
        except TypeError as error:
            raise DataError(f"environment: a column cannot be sent to its worker: {error}") from error

    def close(self) -> None:
        """End the workers. Twice is allowed; `about` starts others."""
        for pool in self._pools:
            pool.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._pools, self._here, self._thread = [], None, None
