"""The thread between a pool's callers and its workers: it sends items, watches deadlines and replaces workers.

It is a thread, so that workers are served, and killed when they hang, while the training thread is busy. Callers send
it functions to call through a queue, and read the replies from their `PoolWork` when that is complete.
"""

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

from oncurve.base.errors import ConfigError
from oncurve.processes.pool.worker import PoolItem, PoolWork, PoolWorker, WorkerReply

LARGEST_CHUNK = 64
_TURN_SECONDS = 60.0  # a new order wakes the thread before
_END_SECONDS = 60.0  # for killing all workers, each of which has a few seconds
MOST_IDLE_DEATHS = 3  # per process: workers in a row that start, and end before they begin an item


class Dispatcher:
    """Keeps `processes` workers, which `start` begins, and the items that wait for them.

    Its thread starts the workers and lives as long as they do: the kernel's signal that the parent has died, which ends
    a worker, refers to the thread that started it.

    about    the attribute `about` of the loaded callable, once `loaded` is set
    alive    whether its thread still runs
    error    why there are no workers any more; `loaded` is set then, too

    Raises OSError where processes cannot be started.
    """

    def __init__(self, start: Callable[[], PoolWorker], start_seconds: float, processes: int) -> None:
        self.workers: list[PoolWorker] = []
        self.about: Any = None
        self.error: BaseException | None = None
        self.loaded = threading.Event()
        self._start, self._start_seconds = start, start_seconds
        self._killed_while_loading = False
        self._idle_deaths = 0
        self._waiting: deque[PoolItem] = deque()
        self._awaited: list[PoolWork] = []
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        started: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(processes, started), daemon=True)
        self.alive = self._thread.is_alive
        self._thread.start()
        started.get()
        if not self.workers and self.error is not None:
            raise self.error

    def do(self, order: Callable[[], None] | None) -> None:
        """Let the thread call `order` (`add`, `expect` or `cancel` with its arguments bound); None: end."""
        self._orders.put(order)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it wakes up anyway; broken: it has ended
            os.write(self._wake, b".")

    def stop(self) -> None:
        """Kill the workers and end the thread. Once only."""
        self.do(None)
        os.close(self._wake)
        if threading.current_thread() is not self._thread:  # the garbage collector calls from any thread
            self._thread.join(_END_SECONDS)

    def add(self, work: PoolWork, encoded: list[str]) -> None:
        """Append items of `work` to those that wait."""
        self._waiting.extend(PoolItem(work, work.given + number, text) for number, text in enumerate(encoded))
        work.given += len(encoded)

    def expect(self, work: PoolWork) -> None:
        """No more items of `work` will come: from now on the caller waits for the replies."""
        work.expected = work.given
        begun = [worker.since for worker in self.workers if worker.pending and worker.pending[0].work is work]
        work.early_seconds = work.busy_seconds + sum(time.monotonic() - since for since in begun)
        self._awaited.append(work)

    def cancel(self, work: PoolWork) -> None:
        """Drop the waiting items of `work`, and replace the workers that compute one."""
        self._waiting = deque(item for item in self._waiting if item.work is not work)
        self._awaited = [other for other in self._awaited if other is not work]
        for slot, worker in enumerate(self.workers):
            if any(item.work is work for item in worker.unanswered):
                self._give_back(slot, [item for item in worker.unanswered if item.work is not work])

    def _serve(self, processes: int, started: SimpleQueue[None]) -> None:
        try:
            try:
                self.workers.extend(self._start() for _ in range(processes))
            finally:
                started.put(None)
            while self._do_orders():
                self._hand_out()
                for work in [work for work in self._awaited if work.complete]:
                    self._awaited.remove(work)
                    work.done.put(None)
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

    def _do_orders(self) -> bool:
        """Call the functions in the queue; False: end."""
        while not self._orders.empty():
            order = self._orders.get_nowait()  # no other thread takes any
            if order is None:
                return False
            order()
        return True

    def _hand_out(self) -> None:
        """Several items per message keep the channel cheap; several messages per run keep all workers busy."""
        chunk = min(LARGEST_CHUNK, math.ceil(len(self._waiting) / (2 * len(self.workers))))
        for slot, worker in enumerate(self.workers):
            if not self._waiting:
                return
            if worker.killed:
                self._replace(slot)
            elif worker.ready and not worker.pending:
                worker.give([self._waiting.popleft() for _ in range(min(chunk, len(self._waiting)))])

    def _turn(self) -> None:
        """Wait for an event, and handle it. A reply that has arrived counts, however late it is read."""
        deadlines = [worker.next_due[0] for worker in self.workers if worker.watched]
        with selectors.PollSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, -1)
            for slot, worker in enumerate(self.workers):
                if not worker.killed:
                    selector.register(worker.incoming, selectors.EVENT_READ, slot)
                    if worker.outgoing:
                        selector.register(worker.request, selectors.EVENT_WRITE, slot)
            happened = selector.select(max(0.0, min(deadlines) - time.monotonic()) if deadlines else _TURN_SECONDS)
        replied = set()
        for key, event in happened:
            if key.data < 0:
                os.read(self._woken, 1 << 16)
                continue
            worker = self.workers[key.data]
            if event & selectors.EVENT_WRITE and key.fd == worker.request:
                worker.send()
            elif event & selectors.EVENT_READ and key.fd == worker.incoming:
                replied.add(key.data)
                self._receive_from(key.data, worker)
        now = time.monotonic()
        for slot, worker in enumerate(self.workers):
            if worker.watched and now >= worker.next_due[0] and slot not in replied:
                if not worker.ready:
                    raise ConfigError(
                        f"a worker did not start within {self._start_seconds:g} seconds "
                        "(start_timeout_seconds): importing its file takes longer, or does not end"
                    )
                number = worker.next_due[1]
                late = f"no answer within {worker.item(number).work.timeout_seconds:g} seconds (timeout_seconds)"
                if worker.importing and number == worker.answered:
                    late = f"its imports took longer than {self._start_seconds:g} seconds (start_timeout_seconds)"
                self._fail_item(slot, WorkerReply(None, "timeout", late), number)

    def _receive_from(self, slot: int, worker: PoolWorker) -> None:
        alive = worker.receive()
        if worker.ready and not self.loaded.is_set():
            self.about = worker.about
            self.loaded.set()
        self._killed_while_loading = self._killed_while_loading and not worker.ready
        self._idle_deaths = 0 if worker.answered else self._idle_deaths
        if worker.spent:
            self._give_back(slot, worker.unanswered)  # its memory would count against the next item
        elif not alive and worker.ready and not (worker.later or (worker.pending and worker.began)):
            self._died_idle(slot, worker)
        elif not alive:
            self._died(slot, worker)

    def _died_idle(self, slot: int, worker: PoolWorker) -> None:
        """A worker ended without an item begun: its items go to others, and it is replaced when there is work."""
        if worker.pending or self._waiting:
            self._idle_deaths += 1
            if self._idle_deaths > MOST_IDLE_DEATHS * len(self.workers):
                raise ConfigError(
                    f"workers start, and end before they begin an item, {self._idle_deaths} times in a row: "
                    f"{worker.how_it_ended()}"
                )
        if worker.pending:
            self._give_back(slot, list(worker.pending))
        worker.kill()

    def _died(self, slot: int, worker: PoolWorker) -> None:
        """An item whose worker others killed (the kernel, out of memory) is tried once more; no reward changes."""
        message = worker.how_it_ended()
        if not worker.ready:
            if not worker.killed_by_others or self._killed_while_loading:
                raise ConfigError(worker.failure or f"a worker did not start: {message}")
            self._killed_while_loading = True
            self._replace(slot)
            return
        self._idle_deaths = 0
        if len(worker.later) > 1 and not (worker.pending and worker.began):
            self._give_back(slot, worker.unanswered)  # any of them may have ended it: it will, when it is alone
            return
        number = worker.answered if worker.pending and worker.began else next(iter(worker.later))
        item = worker.item(number)
        item.kills += worker.killed_by_others
        if item.kills == 1 and worker.killed_by_others:
            self._give_back(slot, worker.unanswered)
        else:
            twice = ", for the second time at this item" if item.kills == 2 and worker.killed_by_others else ""
            self._fail_item(slot, WorkerReply(None, "died", message + twice), number)

    def _fail_item(self, slot: int, reply: WorkerReply, number: int) -> None:
        """Give `reply` to one of the items that a worker was computing, and the others to other workers."""
        worker = self.workers[slot]
        worker.settle(reply, number)
        self._give_back(slot, worker.unanswered)

    def _give_back(self, slot: int, items: list[PoolItem]) -> None:
        self._waiting.extendleft(reversed(items))
        self._replace(slot)

    def _replace(self, slot: int) -> None:
        self.workers[slot].kill()
        self.workers[slot] = self._start()
