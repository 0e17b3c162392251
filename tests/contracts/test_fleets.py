"""What every fleet promises, with real processes: forked ones of this machine, and ones that Ray has placed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fakes.calls import Counted, Refusing
from fakes.waiting import gone, until
from oncurve.base.errors import ConfigError
from oncurve.parallel import World
from oncurve.processes.fleets import Failed, Fleet, HostFleet, ProcessEnded, RayFleet, Replied
from oncurve.processes.fleets.ray_session import SESSION

Make = Callable[..., Fleet]
START_SECONDS = 60.0

FLEETS = [
    HostFleet,
    pytest.param(
        RayFleet,
        marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")],
    ),
]


@pytest.fixture(params=FLEETS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    if request.param is RayFleet:
        request.getfixturevalue("ray")
    return request.param


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for all tests of this file."""
    yield SESSION.use("", 0)
    SESSION.end()


def fleet_of(make: Make, places: int, recipe: Callable[[], Any] = Counted, silence: float = 30.0) -> Fleet:
    return make(recipe, places, silence_seconds=silence)


def next_events(fleet: Fleet, count: int) -> list[Any]:
    """The next `count` events."""
    found: list[Any] = []
    until(lambda: found.extend(fleet.wait(0.5)) or len(found) >= count)  # type: ignore[func-returns-value]
    return found


def value_of(fleet: Fleet, process: int, method: str, *arguments: Any) -> Any:
    number = fleet.call(process, method, *arguments)
    (event,) = next_events(fleet, 1)
    assert isinstance(event, Replied)
    assert (event.process, event.number) == (process, number)
    return event.value


def all_up(fleet: Fleet, count: int) -> list[int]:
    """The processes of `count` places, some of which may need a second start on a busy machine."""
    until(lambda: len(fleet.settled(5.0)) == count)
    fleet.wait(0.0)
    return fleet.up()


def replaced(fleet: Fleet, process: int) -> int:
    """The process that has taken the place of the only one of `fleet`."""
    until(lambda: fleet.settled(5.0) not in ([], [process]))
    return fleet.up()[0]


def test_calls_are_answered_in_order_the_first_cause_of_each_end_is_said_and_close_ends_all(make: Make) -> None:
    with fleet_of(make, 2) as fleet:
        first, second = all_up(fleet, 2)
        numbers = [fleet.call(first, "add", b"x" * (300_000 if index % 3 else 3)) for index in range(30)]
        events = next_events(fleet, 30)
        assert [event.number for event in events] == numbers
        assert [event.value for event in events] == list(range(1, 31))
        assert len(value_of(fleet, second, "much", 40_000_000)) == 40_000_000
        pids = [value_of(fleet, process, "pid") for process in (first, second)]
        assert len({*pids, os.getpid()}) == 3
        handle = fleet.put(memoryview(bytes([piece]) * 3_000_000) for piece in (1, 2))
        for process in (first, second):
            assert value_of(fleet, process, "pieces", handle) == [(1, 3_000_000), (2, 3_000_000)]
        os.kill(pids[0], signal.SIGSEGV)
        assert next_events(fleet, 1) == [ProcessEnded(first, "it was killed by signal SIGSEGV")]
        (process,) = {*all_up(fleet, 2)} - {second}
        number = fleet.call(process, "fail")
        failed, ended = next_events(fleet, 2)
        assert isinstance(failed, Failed)
        assert (failed.process, failed.number, failed.message) == (process, number, "ZeroDivisionError: no luck")
        assert ended == ProcessEnded(process, failed.message)
        fleet.call(second, "sleep", 600)
    until(lambda: all(map(gone, pids)))
    fleet.close()


@pytest.mark.slow
def test_a_process_that_is_stopped_or_killed_is_replaced_while_another_works(make: Make) -> None:
    with fleet_of(make, 2, silence=5.0) as fleet:
        stopped, killed = all_up(fleet, 2)
        pids = [value_of(fleet, process, "pid") for process in (stopped, killed)]
        fleet.call(killed, "sleep", 7)
        assert isinstance(next_events(fleet, 1)[0], Replied), "a process that works lives"
        os.kill(pids[0], signal.SIGSTOP)
        (event,) = next_events(fleet, 1)
        assert event == ProcessEnded(stopped, "it hangs or was stopped: silent for 5 seconds (cluster.silence_seconds)")
        fleet.kill(killed, "it was late")
        (event,) = next_events(fleet, 1)
        assert event == ProcessEnded(killed, "it was late")
        until(lambda: all(map(gone, pids)))
        until(lambda: len(fleet.settled(5.0)) == 2)
        assert not set(fleet.up()) & {stopped, killed}


@pytest.mark.slow
def test_a_place_whose_processes_end_again_and_again_is_quarantined(make: Make) -> None:
    with fleet_of(make, 1) as fleet:
        process, ends = -1, []
        while not ends or not ends[-1].quarantine:
            assert len(ends) < 3
            process = fleet.settled(START_SECONDS)[0] if process < 0 else replaced(fleet, process)
            fleet.call(process, "die", 7)
            ends += next_events(fleet, 1)
        assert [end.cause for end in ends] == ["it ended with exit code 7"] * 3
        assert fleet.quarantined
        assert fleet.up() == []


@pytest.mark.slow
def test_an_object_that_cannot_be_made_is_said_with_its_first_cause(make: Make) -> None:
    with (
        fleet_of(make, 1, Refusing) as fleet,
        pytest.raises(ConfigError, match=r"(?s)the processes cannot start: .*ValueError: not on this machine"),
    ):
        fleet.settled(START_SECONDS)


@pytest.mark.slow
def test_the_processes_and_this_one_meet(make: Make) -> None:
    with fleet_of(make, 2) as fleet:
        for _ in range(2):
            members = fleet.settled(START_SECONDS)
            meeting = fleet.meeting()
            for rank, member in enumerate(members, 1):
                fleet.call(member, "meet", rank, 3, meeting)
            world = World.join(0, 3, meeting, 30.0)
            assert [event.value for event in next_events(fleet, 2)] == [True, True]
            world.leave()


OPEN_AT_THE_END = """
import sys, time
sys.path.append({tests!r})
from fakes.calls import Counted
from oncurve.processes.fleets import {kind}
fleet = {kind}(Counted, 2)
assert len(fleet.settled(120.0)) == 2
"""


@pytest.mark.slow
def test_a_fleet_that_is_open_when_its_process_ends_says_nothing_and_leaves_nothing(make: Make) -> None:
    code = OPEN_AT_THE_END.format(tests=str(Path(__file__).parents[1]), kind=make.__name__)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "oncurve" not in done.stderr, done.stderr  # neither a message nor a traceback; Ray has lines of its own
