"""A child process is waited for on every path: none is dropped while it may still run, however long its end takes."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import oncurve
from fakes.calls import Counted
from fakes.started import start_process
from fakes.waiting import until
from oncurve.base.closing import reap
from oncurve.processes import Minder, minder, spawn
from oncurve.processes.fleets import HostFleet, host_fleet, nursery
from oncurve.processes.fleets.nursery import HostNursery
from oncurve.processes.fleets.ray_fleet import keeper_class
from oncurve.processes.pool import WorkerPool, worker

pytestmark = pytest.mark.slow

LIMITS = [
    (nursery, "_MOMENT_SECONDS"),
    (spawn, "_END_SECONDS"),
    (worker, "_SLOWEST_END_SECONDS"),
    (minder, "_END_SECONDS"),
]
"""How long each waits for its child to end."""


def children() -> set[int]:
    """The processes that this one has started and not waited for, also those that have ended."""
    return {child.pid for child in psutil.Process().children()}


def a_fleet() -> None:
    fleet = HostFleet(Counted, 1)
    fleet.settled(60.0)
    fleet.close()


def a_fleet_that_is_collected() -> None:
    HostFleet(Counted, 1)


def a_pool() -> None:
    WorkerPool("builtins:dict", {}).close()


def a_minder() -> None:
    served = Minder({})
    served.start(["sleep", "600"])
    served.close()


@pytest.mark.parametrize("owner", [a_fleet, a_fleet_that_is_collected, a_pool, a_minder])
def test_a_child_that_has_not_ended_within_the_limit_is_waited_for_later(
    owner: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of 0 is what a busy machine makes of any: the process has got its signal, and is not gone yet."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda complaint: complaints.append(str(complaint.exc_value)))
    for module, name in LIMITS:
        monkeypatch.setattr(module, name, 0.0)
    before = children()
    gc.freeze()  # only what comes now is searched
    owner()
    gc.collect()
    until(lambda: children() <= before)
    gc.collect()
    assert complaints == []


def test_a_fleet_that_is_closed_while_another_nursery_starts_ends_that_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[HostNursery] = []
    starting = threading.Event()

    def slowly(*arguments: Any) -> HostNursery:
        if started:
            starting.set()
            time.sleep(0.5)  # meanwhile the fleet is closed
        started.append(HostNursery(*arguments))
        return started[-1]

    monkeypatch.setattr(host_fleet, "HostNursery", slowly)
    before = children()
    fleet = HostFleet(Counted, 1)
    fleet.settled(60.0)
    started[0].kill()
    assert starting.wait(60.0)
    fleet.close()
    until(lambda: children() <= before)


def test_a_keeper_waits_for_the_process_that_it_has_killed() -> None:
    """It closes its connection, and does not end by itself."""
    tests = str(Path(__file__).parents[1])
    source = str(Path(oncurve.__file__).parents[1])
    keeper = keeper_class()("fakes.calls:close_and_sleep", source, b"", {"PYTHONPATH": tests})
    said: str | None = None
    while said is None:
        _, said = keeper.listen()
    assert said == "it closed its connection and did not end"
    assert keeper.child.returncode is not None
    keeper.end.close()


def test_the_exit_code_is_known_where_the_child_ends_within_the_limit() -> None:
    assert reap(start_process(sys.executable, "-c", "raise SystemExit(3)"), 60.0) == 3
    slow = start_process("sleep", "600")
    assert reap(slow, 0.0) is None
    slow.kill()
    until(lambda: slow.returncode == -9)
