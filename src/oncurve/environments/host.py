"""The workers that play episodes, seen from the run: an episode stays with the worker in which it began."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from oncurve.base.closing import Closing
from oncurve.base.errors import DataError
from oncurve.environments.settings import EnvironmentSettings
from oncurve.processes.pool import Job, Reply, WorkerPool
from oncurve.rewards import Accepts, InProcess

if TYPE_CHECKING:
    from oncurve.environments.endpoint import EndpointServer, Line


class Pending(Protocol):
    """A reply that is being made."""

    def result(self) -> Reply:
        """Wait for it."""

    def cancel(self) -> object:
        """Give it up."""


class _InWorker:
    def __init__(self, pool: WorkerPool, item: Mapping[str, Any], done: SimpleQueue[Any] | None) -> None:
        self._job: Job = pool.begin(done)
        self._job.add([item])
        if done is not None:
            self._job.expect()

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
        self._endpoint: EndpointServer | None = None

    @property
    def endpoint(self) -> EndpointServer:
        """The address that programs call, from its first use on."""
        from oncurve.environments.endpoint import EndpointServer  # here: its packages are an extra

        self._endpoint = self._endpoint or EndpointServer()
        return self._endpoint

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

    def ready(self) -> None:
        """Wait until all workers have loaded their code. Raises ConfigError: one cannot."""
        for pool in self._pools:
            assert pool.about is not None

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for pool in self._pools for pid in pool.pids]

    def begin(self, episode: int, item: Mapping[str, Any], done: SimpleQueue[Any] | None = None) -> Pending:
        """Begin to make the reply to an item of the episode number `episode`; `done` gets None when it is there.

        Raises DataError: the item is not JSON.
        """
        if self._here is not None and self._thread is not None:
            here = self._here
            return self._thread.submit(lambda: here.run([item])[0])
        try:
            return _InWorker(self._pools[episode % len(self._pools)], item, done)
        except TypeError as error:
            raise DataError(f"environment: a column cannot be sent to its worker: {error}") from error

    def run(self, slot: int, line: Line, row: Mapping[str, Any], prompt: Any, seed: int) -> Pending:
        """Begin to run a program for a row in the worker number `slot`. Raises DataError: a column is not JSON."""
        address = {"address": self.endpoint.address, "key": line.key}
        return self.begin(slot, {**address, "row": dict(row), "prompt": prompt, "seed": seed}, line.events)

    def close(self) -> None:
        """End the workers. Twice is allowed; `about` starts others."""
        for pool in self._pools:
            pool.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        if self._endpoint is not None:
            self._endpoint.close()
        self._pools, self._here, self._thread, self._endpoint = [], None, None, None
