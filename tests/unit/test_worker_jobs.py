"""Jobs of worker processes: their replies are their own, their deadlines hold, and nothing of them is left."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fakes.scoring import limit_beyond
from oncurve.base.errors import ConfigError
from oncurve.processes.pool import WorkerPool

MISCHIEF = """
import sys, time

ACTIONS = {
    "sleep": lambda: time.sleep(3600),
    "modules": lambda: sorted(sys.modules),
    "main": lambda: sys.modules["__main__"].__dict__.get("__file__"),
}

class Echo:
    def __init__(self, tag):
        self.tag = tag

    def __call__(self, item):
        return ACTIONS[item]() if isinstance(item, str) else [self.tag, item]
"""


@pytest.fixture(scope="module")
def mischief(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("code") / "mischief.py"
    path.write_text(MISCHIEF)
    return str(path)


@pytest.fixture(scope="module")
def pool(mischief: str) -> Iterator[WorkerPool]:
    settings = {"tag": "t"}
    with WorkerPool(
        f"{mischief}:Echo", settings, processes=2, timeout_seconds=30.0, memory_limit_bytes=1 << 29
    ) as workers:
        yield workers


def test_the_deadline_is_for_an_item_not_for_the_run(tmp_path: Path) -> None:
    (tmp_path / "naps.py").write_text("import time\ndef make():\n    return lambda s: time.sleep(s)\n")
    with WorkerPool(f"{tmp_path}/naps.py:make", {}, timeout_seconds=1.0) as pool:
        assert [reply.fault for reply in pool.run([0.12] * 10)] == [None] * 10


def test_a_worker_that_others_kill_while_it_loads_is_started_once_more(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import time\ntime.sleep(1)\ndef make():\n    return lambda item: item\n")
    with WorkerPool(f"{tmp_path}/late.py:make", {}, timeout_seconds=60) as pool:
        time.sleep(0.3)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert [reply.value for reply in pool.run([1, 2])] == [1, 2]


def test_a_worker_does_not_import_torch_or_the_parents_main(pool: WorkerPool) -> None:
    modules, main = pool.run(["modules", "main"])
    assert not {"torch", "numpy", "transformers", "multiprocessing"} & set(modules.value)
    assert main.value is None


def kill_outright(pool: WorkerPool, end: int) -> None:
    """Kill the pool's worker from outside, and wait for it to be gone. To be called by the thread that hands out, so
    that it cannot see the death before it has given the next items.
    """
    psutil.Process(pool.pids[0]).children()[0].send_signal(end)
    os.waitid(os.P_PID, pool.pids[0], os.WEXITED | os.WNOWAIT)


def test_workers_that_end_as_soon_as_they_have_started_are_an_error_and_no_endless_loop(mischief: str) -> None:
    with WorkerPool(f"{mischief}:Echo", {"tag": "t"}) as pool:
        hand_out = pool._dispatcher._hand_out

        def kill_first() -> None:
            if pool._dispatcher.workers[0].watched is False and not pool._dispatcher.workers[0].killed:
                kill_outright(pool, signal.SIGSEGV)
            hand_out()

        pool._dispatcher._hand_out = kill_first  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match=r"end before they begin an item.*SIGSEGV"):
            pool.run([1, 2])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_workers_begin_with_a_job_before_it_is_whole_and_its_replies_keep_its_order(pool: WorkerPool) -> None:
    with pool.begin() as job:
        for n in range(20):
            job.add([n, n + 100] if n % 2 else [])
        wait_for(lambda: len(job._work.replies) == 20)  # nobody has asked for them yet
        job.add([7])
        replies = job.replies()
    assert [reply.value[1] for reply in replies] == [m for n in range(1, 20, 2) for m in (n, n + 100)] + [7]
    assert job.overlapped_seconds > 0


def test_two_jobs_in_one_pool_get_their_own_replies(pool: WorkerPool) -> None:
    with pool.begin() as one, pool.begin() as other:
        for n in range(10):
            one.add([n])
            other.add([-n])
        assert [reply.value for reply in other.replies()] == [["t", -n] for n in range(10)]
        assert [reply.value for reply in one.replies()] == [["t", n] for n in range(10)]


def test_a_worker_that_hangs_is_killed_at_its_deadline_though_nobody_waits(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "timeout_seconds", limit_beyond(lambda: pool.run([1, 2])))
    pids = pool.pids
    with pool.begin() as job:
        job.add(["sleep", 1])
        wait_for(lambda: set(pids) != set(pool.pids))
        assert job._work.replies[0].fault == "timeout"
        job.add([2])
        assert [reply.value for reply in job.replies()] == [None, ["t", 1], ["t", 2]]


def test_workers_outlive_the_thread_that_made_their_pool(mischief: str) -> None:
    made: list[WorkerPool] = []
    thread = threading.Thread(target=lambda: made.append(WorkerPool(f"{mischief}:Echo", {"tag": "t"})))
    thread.start()
    thread.join()
    with made[0] as pool:
        pids = pool.pids
        assert [reply.value for reply in pool.run([1])] == [["t", 1]]
        assert pool.pids == pids


def test_a_worker_that_died_idle_is_replaced_and_blames_no_item(pool: WorkerPool) -> None:
    pool.run([1])
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two looks
            psutil.Process(pid).wait()
    assert [reply.value for reply in pool.run([1, 2])] == [["t", 1], ["t", 2]]


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while alive := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def test_a_forgotten_pool_kills_its_workers(mischief: str) -> None:
    pool = WorkerPool(f"{mischief}:Echo", {"tag": 1})
    pids = pool.pids
    del pool
    wait_gone(pids)
