"""The thread that stands between a pool's callers and its workers: hands out items, watches deadlines, replaces.

A thread, so that workers are served, and killed when they hang, while the training thread is busy with something else.
Callers give it orders through a queue and read what it has written into their `Work` when it says that it is done.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from oncurve.errors import ConfigError
from oncurve.workers.process import Item, Reply, Start, Work, Worker

LARGEST_CHUNK = 64
MOST_FRUITLESS = 3  # a process: workers in a row that start, and end before they begin an item


class Dispatcher:
    """Keeps `processes` workers, which are told `start` when they begin, and the items that wait for them.

    It starts the workers itself and lives as long as they: the kernel's word that the parent has died, which ends
    a worker, is about the thread that started it.

    about    what the loaded callable says about itself, once `loaded` is set
    error    why there are no workers any more; `loaded` is set then, too

    Raises OSError where processes cannot be started.
    """

    def __init__(self, start: Start, processes: int) -> None:
        self.workers: list[Worker] = []
        self.about: Any = None
        self.error: BaseException | None = None
        self.loaded = threading.Event()
        self._start = start
        self._killed_while_loading = False
        self._fruitless = 0
        self._waiting: deque[Item] = deque()
        self._awaited: list[Work] = []
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        started: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(processes, started), daemon=True)
        self._thread.start()
        started.get()
        if not self.workers and self.error is not None:
            raise self.error

    @property
    def alive(self) -> bool:
        """Whether orders are still obeyed."""
        return self._thread.is_alive()

    def do(self, order: Callable[[], None] | None) -> None:
        """Have `order` (one of `add`, `expect`, `cancel`, its arguments bound) called between two turns."""
        self._orders.put(order)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full of wake-up calls: one will do; or it ended
            os.write(self._wake, b".")

    def stop(self) -> None:
        """Kill the workers and end the thread. Once only."""
        self.do(None)
        os.close(self._wake)
        if threading.current_thread() is not self._thread:  # the collector of garbage may call from anywhere
            self._thread.join()

    def add(self, work: Work, encoded: list[str]) -> None:
        """More items of `work` wait from now on."""
        self._waiting.extend(Item(work, work.given + number, text) for number, text in enumerate(encoded))
        work.given += len(encoded)

    def expect(self, work: Work) -> None:
        """No more items of `work` will come, and somebody waits for the replies."""
        work.expected = work.given
        begun = [worker.since for worker in self.workers if worker.pending and worker.pending[0].work is work]
        work.early_seconds = work.busy_seconds + sum(time.monotonic() - since for since in begun)
        self._awaited.append(work)

    def cancel(self, work: Work) -> None:
        """Nobody wants `work` any more: what waits is dropped, workers that are at it are replaced."""
        self._waiting = deque(item for item in self._waiting if item.work is not work)
        self._awaited = [other for other in self._awaited if other is not work]
        for place, worker in enumerate(self.workers):
            if any(item.work is work for item in worker.pending):
                self._give_back(place, [item for item in worker.pending if item.work is not work])

    def _serve(self, processes: int, started: SimpleQueue[None]) -> None:
        try:
            try:
                self.workers.extend(Worker(self._start) for _ in range(processes))
            finally:
                started.put(None)
            while self._obey():
                self._hand_out()
                self._tell()
                self._turn()
            self.error = ValueError("the worker pool is closed")
        except BaseException as error:
            self.error = error
        for worker in self.workers:
            worker.kill()
        self.loaded.set()
        for work in self._awaited:
            work.done.put(None)
        os.close(self._woken)

    def _obey(self) -> bool:
        """Do as was ordered meanwhile; False: end."""
        while not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _hand_out(self) -> None:
        """Several items in one message keep the channel cheap; several messages a run keep the workers equally busy."""
        chunk = min(LARGEST_CHUNK, math.ceil(len(self._waiting) / (2 * len(self.workers))))
        for place, worker in enumerate(self.workers):
            if not self._waiting:
                return
            if worker.killed:
                self._replace(place)
            elif worker.ready and not worker.pending:
                worker.give([self._waiting.popleft() for _ in range(min(chunk, len(self._waiting)))])

    def _tell(self) -> None:
        for work in [work for work in self._awaited if work.complete]:
            self._awaited.remove(work)
            work.done.put(None)

    def _turn(self) -> None:
        """Wait for something to happen, and deal with it. A reply that is there counts, however late it is read."""
        deadlines = [worker.deadline for worker in self.workers if worker.watched]
        with selectors.PollSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, -1)
            for place, worker in enumerate(self.workers):
                if not worker.killed:
                    selector.register(worker.incoming, selectors.EVENT_READ, place)
                    if worker.outgoing:
                        selector.register(worker.request, selectors.EVENT_WRITE, place)
            happened = selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        heard = set()
        for key, event in happened:
            if key.data < 0:
                os.read(self._woken, 1 << 16)
                continue
            worker = self.workers[key.data]
            if event & selectors.EVENT_WRITE and key.fd == worker.request:
                worker.send()
            elif event & selectors.EVENT_READ and key.fd == worker.incoming:
                heard.add(key.data)
                self._hear(key.data, worker)
        now = time.monotonic()
        for place, worker in enumerate(self.workers):
            if worker.watched and now >= worker.deadline and place not in heard:
                if not worker.ready:
                    raise ConfigError(
                        f"a worker did not start within {self._start.timeout_seconds:g} seconds "
                        "(start_timeout_seconds): what its file does when it is imported takes longer, or never ends"
                    )
                seconds = worker.pending[0].work.timeout_seconds
                self._bury(place, Reply(None, "timeout", f"no answer within {seconds:g} seconds"))

    def _hear(self, place: int, worker: Worker) -> None:
        alive = worker.receive()
        if worker.ready and not self.loaded.is_set():
            self.about = worker.about
            self.loaded.set()
        self._killed_while_loading = self._killed_while_loading and not worker.ready
        self._fruitless = 0 if worker.answered else self._fruitless
        if worker.spent:
            self._give_back(place, list(worker.pending))  # what it keeps would be held against the next item
        elif not alive and worker.ready and not (worker.pending and worker.began):
            self._died_idle(place, worker)
        elif not alive:
            self._died(place, worker)

    def _died_idle(self, place: int, worker: Worker) -> None:
        """No item's fault, and time enough to replace it when there is work; what it was given goes to others."""
        if worker.pending or self._waiting:
            self._fruitless += 1
            if self._fruitless > MOST_FRUITLESS * len(self.workers):
                raise ConfigError(
                    f"workers start, and end before they begin an item, {self._fruitless} times in a row: "
                    f"{worker.obituary()}"
                )
        if worker.pending:
            self._give_back(place, list(worker.pending))
        worker.kill()

    def _died(self, place: int, worker: Worker) -> None:
        """What others killed (the kernel, out of memory) is tried once more: that changes no reward."""
        message = worker.obituary()
        if not worker.ready:
            if not worker.killed_by_others or self._killed_while_loading:
                raise ConfigError(worker.failure or f"a worker did not start: {message}")
            self._killed_while_loading = True
            self._replace(place)
            return
        self._fruitless = 0
        item = worker.pending[0]
        item.kills += worker.killed_by_others
        if item.kills == 1 and worker.killed_by_others:
            self._give_back(place, list(worker.pending))
        else:
            twice = ", for the second time at this item" if item.kills == 2 and worker.killed_by_others else ""
            self._bury(place, Reply(None, "died", message + twice))

    def _bury(self, place: int, reply: Reply) -> None:
        """The item that a worker was at gets `reply`; those it had not begun go to others."""
        worker = self.workers[place]
        worker.settle(reply)
        self._give_back(place, list(worker.pending))

    def _give_back(self, place: int, items: list[Item]) -> None:
        self._waiting.extendleft(reversed(items))
        self._replace(place)

    def _replace(self, place: int) -> None:
        self.workers[place].kill()
        self.workers[place] = Worker(self._start)
