"""The caller's side: a pool of workers, and the items of one caller in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError
from oncurve.processes.pool.dispatch import Dispatcher
from oncurve.processes.pool.serve import plain
from oncurve.processes.pool.worker import PoolWork, PoolWorker, WorkerReply

_PATIENCE_SECONDS = 1.0
_NEEDED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TMP|TEMP|PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX"
    "|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB)_.*|CUDA_VISIBLE_DEVICES"
    "|CUDA_DEVICE_ORDER|CUDA_HOME|NVIDIA_VISIBLE_DEVICES|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerPool(Closing):
    """Processes that each hold the callable `factory(**settings)` and apply it to items.

    factory              path of a callable ("module:name" or "file.py:name"), imported in the workers only; its result
                         is called with one item (JSON) and returns JSON; the result's attribute `about` is sent back
    settings             JSON
    processes            how many
    timeout_seconds      for one item, from its beginning; a worker that takes longer is killed
    memory_limit_bytes   that a worker may allocate beyond its size once loaded; None: no limit
    start_timeout_seconds  for loading the callable; longer: ConfigError
    env_pass             variables that workers see in addition to those of `environment`; ConfigError: not set

    Workers start at once, in the background. They are killed by `close()`, when the pool is garbage-collected, at exit,
    and when this process dies. A thread serves them, so deadlines hold whatever the caller does.
    """

    def __init__(
        self,
        factory: str,
        settings: Mapping[str, Any],
        *,
        processes: int = 1,
        timeout_seconds: float = 10.0,
        memory_limit_bytes: int | None = None,
        start_timeout_seconds: float = 300.0,
        env_pass: Sequence[str] = (),
    ) -> None:
        self.timeout_seconds = timeout_seconds
        message = {
            "factory": factory,
            "settings": dict(settings),
            "sys_path": [str(Path(entry).absolute()) for entry in sys.path],
            "memory_limit_bytes": memory_limit_bytes,
        }
        start = partial(PoolWorker, message, environment(env_pass), start_timeout_seconds)
        self._dispatcher = Dispatcher(start, start_timeout_seconds, processes)
        self._close = weakref.finalize(self, _stop, self._dispatcher, os.getpid())

    @property
    def about(self) -> Any:
        """The attribute `about` of the loaded callable. Waits for a worker; raises ConfigError if it cannot start."""
        self._require_open()
        while self._dispatcher.alive() and not self._dispatcher.loaded.wait(_PATIENCE_SECONDS):
            pass  # a worker that does not start within its limit ends the dispatcher
        if self._dispatcher.error is not None:
            raise self._dispatcher.error
        return self._dispatcher.about

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers' supervisors; a worker ends with its supervisor."""
        return [worker.process.pid for worker in self._dispatcher.workers]

    def begin(self, done: SimpleQueue[Any] | None = None) -> Job:
        """Return a job without items. `done` gets None when all its replies are there. Raises ValueError when
        closed.
        """
        self._require_open()
        return Job(self, done)

    def run(self, items: Sequence[Any]) -> list[WorkerReply]:
        """Return one reply per item, in order. A worker that an item kills is replaced. Each item is tried once, and a
        second time where the worker was killed from outside (SIGKILL, as when the machine is out of memory, or another
        signal that ends a process). A worker that died before it had read the item does not count.

        Raises TypeError for an item that is not JSON, ConfigError when a worker cannot start, ValueError when closed.
        """
        with self.begin() as job:
            job.add(items)
            return job.replies()

    def close(self) -> None:
        """Kill the workers and what they started. Closing twice is allowed."""
        self._close()

    def _require_open(self) -> None:
        if not self._close.alive:
            raise ValueError("the worker pool is closed")


class Job(Closing):
    """Items of one caller in a pool: workers begin with them when they are added, `replies()` waits for all of them.

        with pool.begin() as job:
            job.add(items)              # and others later, while workers compute these
            replies = job.replies()     # one per item, in the order in which they were added

    Where the block ends before `replies` (an interrupt, an abandoned step), its items are dropped, and a worker that is
    computing one of them is killed and replaced. Single use.

    overlapped_seconds   time that all workers spent on it before `replies` was called
    """

    def __init__(self, pool: WorkerPool, done: SimpleQueue[Any] | None = None) -> None:
        self._pool = pool  # a pool with a job in it is not garbage-collected
        self._dispatcher = pool._dispatcher
        self._work = PoolWork(pool.timeout_seconds, done=SimpleQueue() if done is None else done)
        self._over = False
        self.overlapped_seconds = 0.0

    def add(self, items: Sequence[Any]) -> None:
        """Add items. Raises TypeError for one that is not JSON (then none is added), ValueError when closed."""
        self._pool._require_open()
        if items:
            encoded = [json.dumps(item, default=plain) for item in items]
            self._dispatcher.do(partial(self._dispatcher.add, self._work, encoded))

    def expect(self) -> None:
        """Announce that no more items come."""
        self._pool._require_open()
        self._dispatcher.do(partial(self._dispatcher.expect, self._work))

    def replies(self) -> list[WorkerReply]:
        """Wait for the replies. Raises ConfigError when a worker cannot start, ValueError when the pool is closed."""
        self.expect()
        while self._dispatcher.alive() and not self._work.complete:
            with contextlib.suppress(Empty):
                self._work.done.get(timeout=_PATIENCE_SECONDS)
        if not self._work.complete:
            assert self._dispatcher.error is not None
            raise self._dispatcher.error
        self._over = True
        self.overlapped_seconds = self._work.early_seconds
        return [self._work.replies[index] for index in range(self._work.given)]

    @property
    def ready(self) -> bool:
        """Return whether `replies` would not wait."""
        return self._work.complete or not self._dispatcher.alive()

    def close(self) -> None:
        """Cancel the items without a reply. After `replies`, and a second time, nothing happens."""
        if not self._over and self._pool._close.alive:
            self._dispatcher.do(partial(self._dispatcher.cancel, self._work))
        self._over = True


def _stop(dispatcher: Dispatcher, owner: int) -> None:
    if os.getpid() == owner:  # in a forked copy of the parent they are not its workers
        dispatcher.stop()


def environment(passed: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of a worker: paths, language, threads and devices, and those that `passed` names.

    A variable whose name contains a word such as token, key or password is passed on only where `passed` names it.
    Libraries use one thread, unless this process's environment sets a number.

    Raises ConfigError: a variable of `passed` is not set.
    """
    missing = [name for name in passed if name not in os.environ]
    if missing:
        raise ConfigError(f"env_pass: {missing[0]} is not set; set it where oncurve runs, or leave it out")
    needed = {name: value for name, value in os.environ.items() if _NEEDED.fullmatch(name) and not _SECRET.search(name)}
    return {**_ONE_THREAD, **needed, **{name: os.environ[name] for name in passed}}
