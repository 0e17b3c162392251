"""A fleet of forked processes: nothing of it waits for a process that does not answer, and nothing of it is left."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from bench.cluster.memory import process_memory

from fakes.calls import LoadsForEver
from fakes.waiting import until
from oncurve.base.errors import ConfigError, TrainingError
from oncurve.processes.fleets import Fleet, HostFleet, ProcessEnded, Replied
from oncurve.processes.fleets.ray_session import private_folder

pytestmark = pytest.mark.slow

LIMIT = 240.0
"""Against hangs: no speed is asserted."""


class Holder:
    """An object of a fleet's processes."""

    def begin(self) -> None:
        """Nothing to do."""

    def take(self, data: bytes) -> int:
        """How many bytes have come."""
        return len(data)

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def collect(self) -> int:
        """By how many bytes this process grows when it collects garbage."""
        before = process_memory()["now"]
        gc.collect()
        return process_memory()["now"] - before


def events(fleet: Fleet, enough: Callable[[list[Replied | ProcessEnded]], bool]) -> list[Replied | ProcessEnded]:
    """What has happened by the time that it is enough."""
    found: list[Replied | ProcessEnded] = []

    def come() -> bool:
        found.extend(event for event in fleet.wait(0.2) if isinstance(event, Replied | ProcessEnded))
        return enough(found)

    until(come)
    return found


def pid_of(fleet: Fleet, process: int) -> int:
    return answer(fleet, process, "pid")


def answer(fleet: Fleet, process: int, method: str) -> int:
    fleet.call(process, method)
    (event,) = events(fleet, lambda found: len(found) == 1)
    assert isinstance(event, Replied)
    return int(event.value)


def send_signals_for_the_run(to: list[psutil.Process]) -> None:
    for process in to:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)


@pytest.fixture(scope="module")
def two() -> Iterator[HostFleet]:
    """A fleet of two, whose nursery gets Ctrl-C at its first moment: a terminal's may come before it has its group."""
    before = set(psutil.Process().children())
    with HostFleet(Holder, 2, silence_seconds=600.0) as fleet:
        send_signals_for_the_run(list(set(psutil.Process().children()) - before))
        yield fleet


def test_signals_that_are_for_the_run_end_none_of_its_processes(two: HostFleet) -> None:
    processes = two.settled(LIMIT)
    assert len(processes) == 2
    nursery = psutil.Process(pid_of(two, processes[0])).parent()
    children = nursery.children()
    assert len(children) == 2
    send_signals_for_the_run([nursery, *children])
    assert {pid_of(two, process) for process in processes} == {child.pid for child in children}
    assert (two.up(), two.wait(0.0)) == (processes, [])


def test_a_process_that_collects_garbage_has_no_copy_of_what_all_of_them_share(two: HostFleet) -> None:
    assert answer(two, two.settled(LIMIT)[0], "collect") < 8 * 2**20


def test_ranks_do_not_meet_in_a_folder_that_others_may_write_to(two: HostFleet) -> None:
    folder = two.meeting().path.parent
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        two.meeting()
    folder.chmod(0o700)


def test_sending_to_a_stopped_process_makes_no_caller_wait(two: HostFleet) -> None:
    stopped, living = two.settled(LIMIT)
    os.kill(pid_of(two, stopped), signal.SIGSTOP)

    def send() -> None:
        for process in (stopped, living):
            for _ in range(3):
                two.call(process, "take", bytes(1 << 22))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    found = events(two, lambda found: len(found) == 3)
    assert [(event.process, event.value) for event in found if isinstance(event, Replied)] == [(living, 1 << 22)] * 3
    two.kill(stopped, "enough")
    assert events(two, lambda found: len(found) == 1) == [ProcessEnded(stopped, "enough")]


def nursery_is_replaced(fleet: HostFleet, number: signal.Signals, words: str) -> None:
    until(lambda: len(fleet.settled(LIMIT)) == 2)
    before = fleet.up()
    nursery = psutil.Process(pid_of(fleet, before[0])).parent()
    nursery.send_signal(number)
    found = events(fleet, lambda found: len(found) == 2)
    assert {event.process for event in found} == set(before)
    assert all(isinstance(event, ProcessEnded) and words in event.cause for event in found)
    until(lambda: len(fleet.settled(LIMIT)) == 2)
    after = fleet.up()
    assert not set(after) & set(before)
    parent = psutil.Process(pid_of(fleet, after[1])).parent()
    assert parent is not None
    assert parent != nursery
    assert not nursery.is_running()


def test_a_nursery_that_is_killed_is_replaced(two: HostFleet) -> None:
    nursery_is_replaced(two, signal.SIGKILL, "killed by signal SIGKILL")


def test_a_nursery_that_is_stopped_is_replaced() -> None:
    with HostFleet(Holder, 2, silence_seconds=3.0) as fleet:
        nursery_is_replaced(fleet, signal.SIGSTOP, "silent for 3 seconds")


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_nursery_that_is_killed_before_it_is_ready_is_replaced_twice_and_then_an_error(deaths: int) -> None:
    seen = set(psutil.Process().children())
    with HostFleet(Holder, 1) as fleet:
        for _ in range(deaths):
            until(lambda: bool(set(psutil.Process().children()) - seen))
            (nursery,) = set(psutil.Process().children()) - seen
            nursery.kill()
            seen.add(nursery)
        if deaths == 2:
            until(lambda: len(fleet.settled(LIMIT)) == 1)
        else:
            with pytest.raises(ConfigError, match=r"forks them has ended 3 times .*SIGKILL"):
                fleet.settled(LIMIT)


def test_a_nursery_that_is_not_ready_in_time_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oncurve.processes.fleets.host_fleet.START_SECONDS", 0.1)
    with HostFleet(LoadsForEver, 1) as fleet, pytest.raises(ConfigError, match=r"did not start within 0\.1 seconds"):
        fleet.settled(LIMIT)


LOADS_FOR_EVER = """
import sys, time
sys.path.append({tests!r})
from oncurve.processes.fleets import HostFleet
from fakes.calls import LoadsForEver
with HostFleet(LoadsForEver, 1) as fleet:
    fleet.settled(600.0)
"""


@pytest.mark.parametrize("loads", [True, False])
def test_a_nursery_ends_with_a_killed_run_while_it_imports_or_loads_and_its_private_folder_too(
    loads: bool, tmp_path: Path
) -> None:
    code = LOADS_FOR_EVER.format(tests=str(Path(__file__).parents[2]))
    run = psutil.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=tmp_path)
    if loads:
        until(lambda: (tmp_path / "loads").exists())
    else:
        until(lambda: any("nursery" in word for child in run.children() for word in child.cmdline()))
    (nursery,) = run.children()
    (folder,) = tmp_path.glob("oncurve-ranks-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not any(folder.name in word for word in nursery.cmdline())
    run.kill()
    assert psutil.wait_procs([run, nursery], timeout=60)[1] == []
    assert not folder.exists()


HAS_A_FOLDER = """
import sys, time
from pathlib import Path
from oncurve.processes.fleets.ray_session import private_folder

print(private_folder(Path(sys.argv[1])).name, flush=True)
time.sleep(600)
"""


def test_the_folder_of_rays_files_that_a_killed_run_leaves_goes_with_the_next_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HAS_A_FOLDER, str(tmp_path)]
    killed, alive = (psutil.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    with killed, alive:
        left, kept = (tmp_path / run.stdout.readline().strip() for run in (killed, alive))
        (tmp_path / "oncurve-ray-other").mkdir()
        killed.kill()
        killed.wait(60)
        mine = private_folder(tmp_path)
        assert set(tmp_path.iterdir()) == {kept, mine, tmp_path / "oncurve-ray-other"} - {left}
        alive.kill()


def test_deaths_leave_no_descriptor_no_thread_and_no_child() -> None:
    me = psutil.Process()

    def held() -> tuple[int, int, int, int]:
        family = me.children(recursive=True)
        zombies = 0
        for child in family:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                zombies += child.status() == psutil.STATUS_ZOMBIE
        return me.num_fds(), threading.active_count(), len(family), zombies

    with HostFleet(Holder, 70) as fleet:
        assert len(fleet.settled(LIMIT)) == 70
        before = held()
        killed = 0
        while killed < 200:
            for process in fleet.settled(LIMIT):
                fleet.call(process, "take", bytes(1 << 16))
                fleet.kill(process, "enough")
                killed += 1
            fleet.wait(0.2)
        until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def test_an_error_of_the_fleets_own_thread_is_told(two: HostFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of this fleet."""

    def broken(seconds: float) -> None:
        raise OSError(24, "Too many open files")

    two.settled(LIMIT)
    monkeypatch.setattr(two._spawner, "wait", broken)
    with pytest.raises(TrainingError, match=r"cannot be served any more: OSError: .* Too many open files"):
        until(lambda: two.settled(LIMIT) == [])
    with pytest.raises(TrainingError, match="Too many open files"):
        two.wait(0.0)
