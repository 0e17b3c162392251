"""The workers that play episodes, seen from the run: an episode stays with the worker in which it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, DataError
from oncurve.environments.settings import EnvironmentSettings
from oncurve.environments.tools import BY_COLUMN
from oncurve.processes.pool import Job, Reply, WorkerPool
from oncurve.rewards import Accepts, InProcess

if TYPE_CHECKING:
    from oncurve.environments.endpoint import EndpointServer, Line


class Pending(Protocol):
    """A reply that is being made."""

    @property
    def ready(self) -> bool:
        """Return whether it is there."""

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

    @property
    def ready(self) -> bool:
        return self._job.ready

    def result(self) -> Reply:
        return self._job.replies()[0]

    def cancel(self) -> None:
        self._job.close()


class _InThread:
    def __init__(
        self, thread: ThreadPoolExecutor, here: InProcess, item: Mapping[str, Any], done: SimpleQueue[Any] | None
    ) -> None:
        self._future = thread.submit(lambda: here.run([item])[0])
        self.result, self.cancel = self._future.result, self._future.cancel
        if done is not None:
            self._future.add_done_callback(lambda _: done.put(None))

    @property
    def ready(self) -> bool:
        return self._future.done()


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
            if player is None:
                self._pools = [self.settings.workers(self._base) for _ in range(self.settings.processes)]
                try:
                    self._about = self._pools[0].about
                except ConfigError:
                    self.close()
                    player = self.settings.here(copied=False)
                    if player is None:
                        raise
            if player is not None:
                self._here, self._about = InProcess(player, Accepts()), player.about
                self._thread = ThreadPoolExecutor(1, "oncurve-environment")
        return self._about

    def tools_of(self, row: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tools that the policy is shown for a row."""
        tools: Any = self.about()["tools"]
        found: Sequence[Any] = tools.get(str(row.get(BY_COLUMN, "")), ()) if isinstance(tools, Mapping) else tools
        return found

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
            return _InThread(self._thread, self._here, item, done)
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
