"""Worker processes: whatever user code does, a reply comes back in time and nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from fakes.scoring import limit_beyond
from fakes.started import start_process
from fakes.tables import table
from fakes.waiting import errors_with, gone, until
from oncurve.base.errors import ConfigError
from oncurve.processes.pool import WorkerPool, WorkerReply

MISCHIEF = """
import contextlib, ctypes, itertools, json, os, signal, subprocess, sys, threading, time

print("printed while loading")

class Own(BaseException):
    pass

def endless():
    while True:
        pass

def fork():
    if os.fork() == 0:
        return "from the child"
    return "from the parent"

def orphan():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.write(write, str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "3600")).encode())
        os._exit(0)
    return int(os.read(read, 20))

def forked():
    if os.fork() == 0:
        write_everywhere(b'{"value": 9}\\n')
        os._exit(0)
    os.wait()
    return 1

def close_everything():
    os.closerange(3, 100)
    return 1

def grow():
    kept = []
    while True:
        kept.append(bytearray(1 << 24))

ACTIONS = {
    "raise": lambda: 1 / 0,
    "base": lambda: (_ for _ in ()).throw(Own("mine")),
    "exit": lambda: sys.exit(3),
    "os_exit": lambda: os._exit(7),
    "crash": lambda: ctypes.string_at(0),
    "endless": endless,
    "sleep": lambda: time.sleep(3600),
    "allocate": lambda: len(bytearray(1 << 45)),
    "grow": grow,
    "print": lambda: [print("{}" * 100), os.write(1, b"raw"), 5][2],
    "fork": fork,
    "object": lambda: object(),
    "circular": lambda: (lambda x: x.append(x) or x)([]),
    "nan": lambda: float("nan"),
    "large": lambda: "x" * (20 << 20),
    "c_loop": lambda: sum(itertools.repeat(1)),  # holds the interpreter lock, and no signal handler runs
    "daemon": lambda: subprocess.Popen(["sleep", "3600"], start_new_session=True).pid,
    "orphan": orphan,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "environment": lambda: dict(os.environ),
    "supervisor": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "numbered": lambda: write_everywhere(b'{"number": 0, "value": 9}\\n'),
    "foreign": lambda: write_everywhere(b'{"secret": "0123456789abcdef", "number": 0, "value": 9}\\n'),
    "half": lambda: write_everywhere(b'{"value": '),
    "deep": lambda: write_everywhere(b"[" * 5000 + b"\\n"),
    "forked": forked,
    "junk": lambda: write_everywhere(b"junk\\n"),
    "close": close_everything,
    "child": lambda: subprocess.Popen(["sleep", "3600"]).pid,
    "pid": os.getpid,
    "modules": lambda: sorted(sys.modules),
}

def write_everywhere(data):
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(descriptor, data)

class Echo:
    about = {"made": True}

    def __init__(self, tag):
        self.tag = tag

    def __call__(self, item):
        return ACTIONS[item]() if isinstance(item, str) else [self.tag, item]

def broken(tag):
    raise RuntimeError("no licence file")
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


def test_items_are_answered_in_order(pool: WorkerPool) -> None:
    assert pool.about == {"made": True}
    items = [{"n": n, "text": "ünï\n\ud800"} for n in range(500)]
    assert [reply.value for reply in pool.run(items)] == [["t", item] for item in items]
    assert pool.run([]) == []


FAULTS = {
    **table("workers", "faults"),
    **dict.fromkeys(("numbered", "foreign", "half", "deep"), ("died", "broke its channel")),
}


@pytest.mark.parametrize("action", FAULTS)
def test_every_fault_has_its_kind_and_takes_no_neighbour_along(pool: WorkerPool, action: str) -> None:
    kind, words = FAULTS[action]
    before, reply, after = pool.run([1, action, 2])
    assert (before.value, after.value) == (["t", 1], ["t", 2])
    assert reply.fault == kind
    assert words in reply.message
    assert reply.value is None


def test_a_worker_that_others_killed_is_tried_once_more(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(
        "import os, signal, pathlib\n"
        "def make(folder):\n"
        "    def reward(name):\n"
        "        marks = [pathlib.Path(folder, f'{name}-{n}') for n in range(2)]\n"
        "        for mark in marks[: 2 if name == 'twice' else 1 if name == 'once' else 0]:\n"
        "            if not mark.exists():\n"
        "                mark.touch()\n"
        "                os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return name\n"
        "    return reward\n"
    )
    with WorkerPool(f"{tmp_path}/fragile.py:make", {"folder": str(tmp_path)}, timeout_seconds=60) as pool:
        replies = pool.run(["never", "once", "twice", "never"])
    assert [reply.value for reply in replies] == ["never", "once", None, "never"]
    assert replies[2].fault == "died"
    assert "for the second time" in replies[2].message


def test_a_signal_for_the_run_leaves_its_workers_alone(tmp_path: Path) -> None:
    (tmp_path / "calm.py").write_text("import time\ntime.sleep(0.3)\ndef factory(): return lambda item: item\n")
    with WorkerPool(f"{tmp_path}/calm.py:factory", {}, timeout_seconds=60) as pool:
        pids = pool.pids
        for _ in range(40):  # from the first instruction on, until after it has loaded
            os.killpg(pids[0], signal.SIGUSR1)
            time.sleep(0.02)
        assert pool.run([1])[0].value == 1
        assert pool.pids == pids


def test_a_file_that_loops_when_it_is_imported_is_refused_within_the_stated_time(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("while True:\n    pass\n")
    with WorkerPool(f"{tmp_path}/loop.py:make", {}, start_timeout_seconds=0.5) as pool:
        pids = pool.pids
        with pytest.raises(ConfigError, match=r"did not start within 0\.5 seconds \(start_timeout_seconds\)"):
            _ = pool.about
    wait_gone(pids)


def test_workers_see_no_secrets_of_the_environment(mischief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "MY_KEY", "LC_PASSWORD", "PYTHON_TOKEN")
    for name in secrets:
        monkeypatch.setenv(name, f"secret {name}")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with WorkerPool(f"{mischief}:Echo", {"tag": "t"}, env_pass=["MY_KEY"]) as pool:
        seen, above = (reply.value for reply in pool.run(["environment", "supervisor"]))
        files = [Path(f"/proc/{pid}/environ").read_text() for pid in pool.pids]
    assert seen["MY_KEY"] == "secret MY_KEY"
    assert (seen["PATH"], seen["LC_ALL"], seen["OMP_NUM_THREADS"]) == (os.environ["PATH"], "C.UTF-8", "2")
    for text in (json.dumps(seen), above, *files):
        assert [name for name in secrets if f"secret {name}" in text] == ["MY_KEY"]


@pytest.mark.parametrize("action", ["endless", "sleep", "c_loop"])
def test_an_item_that_takes_too_long_is_killed_and_the_others_are_answered(
    pool: WorkerPool, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = limit_beyond(lambda: pool.run([1, 2]))
    monkeypatch.setattr(pool, "timeout_seconds", limit)
    pids = pool.pids
    replies = pool.run([1, action, 2, 3, 4])
    assert [reply.fault for reply in replies] == [None, "timeout", None, None, None]
    assert replies[1].message == f"no answer within {limit:g} seconds (timeout_seconds)"
    assert len(set(pids) & set(pool.pids)) == 1


def test_the_imports_of_a_call_have_the_time_of_a_start(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2.5)\n")
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "late.py").write_text(
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        "def make():\n    def call(name):\n        __import__(name)\n        return name\n    return call\n"
    )
    with WorkerPool(f"{tmp_path}/late.py:make", {}, timeout_seconds=2, start_timeout_seconds=6) as pool:
        replies = pool.run(["slow", "slow", "missing", "endless", "json"])
    assert [reply.value for reply in replies] == ["slow", "slow", None, None, "json"]
    assert "ModuleNotFoundError" in replies[2].message
    assert replies[3] == WorkerReply(None, "timeout", "its imports took longer than 6 seconds (start_timeout_seconds)")


def test_printing_forking_and_nan_do_not_disturb_the_channel(capfd: pytest.CaptureFixture[str], mischief: str) -> None:
    with WorkerPool(f"{mischief}:Echo", {"tag": "t"}) as pool:
        replies = pool.run(["print", "fork", "fork", "nan", 1])
    assert [replies[index].value for index in (0, 1, 2, 4)] == [5, "from the parent", "from the parent", ["t", 1]]
    assert replies[3].value != replies[3].value
    errors_with("raw", capfd)  # a thread passes it on


@pytest.mark.parametrize(
    ("name", "words"), [("broken", "RuntimeError: no licence file"), ("Ecko", "did you mean 'Echo'")]
)
def test_a_worker_that_cannot_start_says_why(mischief: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words), WorkerPool(f"{mischief}:{name}", {"tag": 1}) as pool:
        pool.run([1])


def kill_outright(pool: WorkerPool, end: int) -> None:
    """Kill the pool's worker from outside, and wait for it to be gone. To be called by the thread that hands out, so
    that it cannot see the death before it has given the next items.
    """
    psutil.Process(pool.pids[0]).children()[0].send_signal(end)
    os.waitid(os.P_PID, pool.pids[0], os.WEXITED | os.WNOWAIT)


def test_an_item_is_not_blamed_for_a_worker_that_was_dead_before_it_was_given(mischief: str) -> None:
    with WorkerPool(f"{mischief}:Echo", {"tag": "t"}, timeout_seconds=60) as pool:
        for end in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM):
            assert pool.run([1])[0].value == ["t", 1]
            pool._dispatcher.do(partial(kill_outright, pool, end))
            assert [reply.value for reply in pool.run([1, 2, 3])] == [["t", 1], ["t", 2], ["t", 3]]


def test_a_worker_that_leaks_is_replaced_when_it_reaches_its_limit(tmp_path: Path) -> None:
    (tmp_path / "leak.py").write_text(
        "kept = []\ndef make():\n    return lambda megabytes: kept.append(bytearray(megabytes << 20)) or len(kept)\n"
    )
    with WorkerPool(f"{tmp_path}/leak.py:make", {}, processes=1, memory_limit_bytes=100 << 20) as pool:
        replies = pool.run([40] * 8 + [1])  # the first message holds five: what follows the fault there is begun anew
    assert [reply.value or reply.fault for reply in replies] == [1, 2, "memory"] * 2 + [1, 2, 3]


def test_a_job_that_is_left_is_cancelled_and_takes_no_neighbour_along(pool: WorkerPool) -> None:
    pool.run([1, 2])
    with pool.begin() as other:
        with suppress(KeyboardInterrupt), pool.begin() as job:
            job.add(["sleep", "sleep", "sleep", "sleep"])
            other.add([5, 6])
            until(lambda: all(worker.pending for worker in pool._dispatcher.workers))
            raise KeyboardInterrupt
        assert [reply.value for reply in other.replies()] == [["t", 5], ["t", 6]]
    job.close()
    with pytest.raises(TypeError), pool.begin() as refused:
        refused.add([1, object()])
    assert [reply.value for reply in pool.run([3])] == [["t", 3]]


def test_a_pool_that_is_closed_or_broken_keeps_nobody_waiting(mischief: str) -> None:
    with WorkerPool(f"{mischief}:Echo", {"tag": "t"}) as pool:
        job = pool.begin()
        job.add(["sleep"])
        threading.Timer(0.3, pool.close).start()
        with pytest.raises(ValueError, match="closed"):
            job.replies()
        job.close()
    with WorkerPool(f"{mischief}:broken", {"tag": "t"}) as pool:
        for _ in range(2):
            with pytest.raises(ConfigError, match="no licence file"):
                pool.run([1])
            with pytest.raises(ConfigError, match="no licence file"):
                _ = pool.about


def test_closing_kills_workers_and_what_they_started(mischief: str) -> None:
    pool = WorkerPool(f"{mischief}:Echo", {"tag": 1}, processes=2)
    started = [reply.value for reply in pool.run(["child", "daemon", "orphan"])]
    workers = pool.pids
    pool.close()
    pool.close()
    wait_gone([*started, *workers])
    with pytest.raises(ValueError, match="closed"):
        pool.run([1])
    with pytest.raises(ValueError, match="closed"):
        _ = pool.about


@pytest.mark.parametrize("action", ["None", "'sleep'", "'c_loop'"])
def test_no_worker_outlives_a_parent_that_is_killed(mischief: str, action: str) -> None:
    script = f"""
from oncurve.processes.pool import WorkerPool
pool = WorkerPool({mischief + ":Echo"!r}, {{"tag": 1}}, processes=2, timeout_seconds=600)
started = [reply.value for reply in pool.run(["child", "daemon", "orphan", "pid"])]
print([*started, *pool.pids], flush=True)
pool.run([{action}] * 2)
import time; time.sleep(600)
"""
    parent = start_process(sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pids = json.loads(parent.stdout.readline())
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    try:
        wait_gone(pids)
    finally:
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


def test_the_script_of_the_user_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    return lambda x: x + 1\n")
    (tmp_path / "script.py").write_text(
        "print('running')\n"
        "from oncurve.processes.pool import WorkerPool\n"
        "with WorkerPool('mine:make', {}) as pool:\n"
        "    print(pool.run([1])[0])\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"running\n{WorkerReply(2)}\n", done.stderr


def test_the_deadline_is_for_an_item_not_for_the_run(tmp_path: Path) -> None:
    (tmp_path / "naps.py").write_text("import time\ndef make():\n    return lambda s: time.sleep(s)\n")
    with WorkerPool(f"{tmp_path}/naps.py:make", {}, timeout_seconds=3.0) as pool:
        assert [reply.fault for reply in pool.run([0.3] * 12)] == [None] * 12


def test_a_worker_that_others_kill_while_it_loads_is_started_once_more(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import time\ntime.sleep(1)\ndef make():\n    return lambda item: item\n")
    with WorkerPool(f"{tmp_path}/late.py:make", {}, timeout_seconds=60) as pool:
        time.sleep(0.3)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert [reply.value for reply in pool.run([1, 2])] == [1, 2]


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


def test_workers_begin_with_a_job_before_it_is_whole_and_its_replies_keep_its_order(pool: WorkerPool) -> None:
    with pool.begin() as job:
        for n in range(20):
            job.add([n, n + 100] if n % 2 else [])
        until(lambda: len(job._work.replies) == 20)  # nobody has asked for them yet
        job.add([7])
        replies = job.replies()
    assert [reply.value[1] for reply in replies] == [m for n in range(1, 20, 2) for m in (n, n + 100)] + [7]
    assert job.overlapped_seconds > 0


def test_a_worker_that_hangs_is_killed_at_its_deadline_though_nobody_waits(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "timeout_seconds", limit_beyond(lambda: pool.run([1, 2])))
    pids = pool.pids
    with pool.begin() as job:
        job.add(["sleep", 1])
        until(lambda: set(pids) != set(pool.pids))
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


def test_a_forgotten_pool_kills_its_workers(mischief: str) -> None:
    pool = WorkerPool(f"{mischief}:Echo", {"tag": 1})
    pids = pool.pids
    del pool
    wait_gone(pids)


def test_a_worker_does_not_import_torch(pool: WorkerPool) -> None:
    (modules,) = pool.run(["modules"])
    assert not {"torch", "numpy", "transformers", "multiprocessing"} & set(modules.value)


def wait_gone(pids: list[int]) -> None:
    until(lambda: all(map(gone, pids)))
