"""A tracker that fails, hangs or comes back: training goes on, and no step is shown twice or out of order."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from oncurve.tracking import CompletionRow, TrackedRun, Tracking, TrackingSettings, follower as module
from oncurve.tracking.follower import GIVES_UP_AFTER, Follower

ROW = CompletionRow("a", "b", 1.0, 0.5, "", 1, "eos")


class Service:
    """What a tracker sends to: it keeps steps, and does not answer the calls whose numbers are in `down`."""

    def __init__(self, down: Sequence[int] = ()) -> None:
        self.steps: list[int] = []
        self.tables: list[int] = []
        self.opened = self.closed = self.calls = 0
        self.down = down

    def answer(self) -> None:
        self.calls += 1
        if self.calls in self.down:
            raise ConnectionError("no route\nto host")


class Client:
    """A tracker of a service."""

    place = "https://service/run"

    def __init__(self, service: Service) -> None:
        self.service = service

    def begin(self, run: TrackedRun) -> int:
        self.service.opened += 1
        self.service.answer()
        return max(self.service.steps, default=0)

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        self.service.answer()
        self.service.tables.append(step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.service.answer()
        assert metrics == {"reward/mean": step / 2}
        self.service.steps.append(step)

    def close(self) -> None:
        self.service.closed += 1


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.001)


def log_of(folder: Path, steps: int) -> Path:
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": step, "reward/mean": step / 2}) + "\n" for step in range(1, steps + 1)))
    return log


def run_in(folder: Path, step: int = 0) -> TrackedRun:
    return TrackedRun("id", "name", {}, folder, step, TrackingSettings(to=("service",)))


def following(service: Service, folder: Path, steps: int, step: int = 0) -> Follower:
    return Follower("service", lambda: Client(service), run_in(folder, step), log_of(folder, steps))


def test_steps_are_shown_as_they_come(tmp_path: Path) -> None:
    service, lines = Service(), log_of(tmp_path, 5).read_text()
    log = log_of(tmp_path, 0)
    follower = Follower("service", lambda: Client(service), run_in(tmp_path), log)
    written = 0
    for step in range(1, 6):
        end = lines.index("\n", written + 1) + 9  # and the beginning of the next line, which is in writing
        with log.open("a") as growing:
            growing.write(lines[written:end])
        written = end
        follower.recorded(step, (ROW,) if step == 3 else ())
    follower.end()
    assert follower.wait(30) is None
    assert service.steps == [1, 2, 3, 4, 5]
    assert service.tables == [3]
    assert (service.opened, service.closed) == (1, 1)
    assert follower.news == ["service: https://service/run"]


def test_a_line_waits_for_the_table_of_its_step(tmp_path: Path) -> None:
    service, waits = Service(), threading.Event()

    class Watched(Follower):
        def _wait_beyond(self, step: int) -> None:
            waits.set()
            super()._wait_beyond(step)

    follower = Watched("service", lambda: Client(service), run_in(tmp_path), log_of(tmp_path, 1))
    assert waits.wait(30)
    assert service.steps == []
    follower.recorded(1, (ROW,))
    follower.end()
    assert follower.wait(30) is None
    assert (service.steps, service.tables) == ([1], [1])


@pytest.mark.parametrize("down", [(1,), (1, 2, 3), (2,), (3, 4, 5), (2, 4, 6), (5, 6, 7)])
def test_a_tracker_that_fails_is_opened_again_and_catches_up(down: tuple[int, ...], tmp_path: Path) -> None:
    service = Service(down)
    follower = following(service, tmp_path, 4)
    follower.recorded(4)
    while follower.shown < 4:
        threading.Event().wait(0.001)
    follower.end()
    assert follower.wait(30) is None
    assert service.steps == [1, 2, 3, 4]
    assert follower.failures == len(down)
    assert service.opened == service.closed == len(down) + 1
    (said,) = [line for line in follower.news if "Error" in line]
    assert said == "service: ConnectionError: no route to host; training goes on, and it is tried again"


def test_a_tracker_that_never_answers_is_given_up(tmp_path: Path) -> None:
    service = Service(range(1, 1000))
    follower = following(service, tmp_path, 3)
    follower.recorded(3)
    while len(follower.news) < 2:
        threading.Event().wait(0.001)
    assert service.opened == service.closed == follower.failures == GIVES_UP_AFTER
    assert follower.news[-1] == "service: given up after 12 failures in a row; metrics.jsonl has all steps"
    follower.recorded(4)
    follower.end()
    assert follower.wait(30) == "service lacks 4 of 4 steps: it failed 12 times"


def test_a_run_that_ends_while_a_tracker_fails_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 1e6)
    monkeypatch.setattr(module, "FIRST_WAIT", 1e6)
    service = Service((1,))
    follower = following(service, tmp_path, 3)
    follower.recorded(3)
    while not follower.failures:
        threading.Event().wait(0.001)
    follower.end()  # ends the pause, and the second attempt succeeds
    assert follower.wait(30) is None
    assert service.steps == [1, 2, 3]


def test_a_tracker_whose_begin_returns_nothing_is_told_so_and_the_run_ends(tmp_path: Path) -> None:
    class Silent(Client):
        def begin(self, run: TrackedRun) -> int:
            return cast(int, None)

    follower = Follower("silent", lambda: Silent(Service()), run_in(tmp_path), log_of(tmp_path, 2))
    follower.recorded(2)
    follower.end()
    assert (follower.wait(30) or "").startswith("silent lacks 2 of 2 steps: it failed")
    assert "begin must return the last step shown, -1 for none; it returned None" in follower.news[0]


def test_a_tracker_that_hangs_holds_neither_a_step_nor_the_end_up(tmp_path: Path) -> None:
    answers = threading.Event()

    class Hangs(Client):
        def begin(self, run: TrackedRun) -> int:
            answers.wait()
            return super().begin(run)

    service = Service()
    tracking = Tracking(
        TrackingSettings(timeout_seconds=0.01),
        [
            Follower("hangs", lambda: Hangs(service), run_in(tmp_path), log_of(tmp_path, 2)),
            following(other := Service(), tmp_path, 2),
        ],
    )
    for step in (1, 2):
        tracking.recorded(step, (), ())
    tracking.end()
    while other.closed == 0:
        threading.Event().wait(0.001)
    lines = tracking.close()
    assert "hangs lacks 2 of 2 steps: it gave no answer in the time it had (tracking.timeout_seconds)" in lines
    assert other.steps == [1, 2]
    answers.set()
    assert tracking.close(30) == ["hangs: https://service/run"]
    assert service.steps == [1, 2]
