"""The schedule of the reference's moves: at which steps, and never twice for one."""

import pytest

from fakes.learning import make_learner
from oncurve.trainer import Outer, ReferenceSchedule, StepResult, TrainerState


def moves(outer: ReferenceSchedule, steps: int, begun: int = 1) -> list[int]:
    """The steps (from 1) that began with a move; each is begun `begun` times."""
    found = []
    for done in range(steps):
        for _ in range(begun):
            outer.begin(TrainerState(step=done))
        if outer.end(result(done + 1)).metrics.get("reference_moved"):
            found.append(done + 1)
    return found


def result(step: int) -> StepResult:
    return StepResult(step, {}, (), ())


@pytest.mark.parametrize(
    ("every", "steps"), [(0, []), (1, [2, 3, 4, 5, 6, 7]), (2, [3, 5, 7]), (3, [4, 7]), (6, [7]), (7, [])]
)
@pytest.mark.parametrize("begun", [1, 3])
def test_it_moves_after_every_so_many_steps_and_once_for_a_step_that_is_begun_again(
    every: int, steps: list[int], begun: int
) -> None:
    learner = make_learner()
    outer: Outer = ReferenceSchedule(every, 0.5, learner)
    assert moves(outer, 7, begun) == steps
    assert learner.reference_version == len(steps)


def test_what_it_keeps_is_the_step_it_moved_for() -> None:
    learner = make_learner()
    outer = ReferenceSchedule(2, 0.5, learner)
    assert outer.state() == ({}, {})
    outer.begin(TrainerState(step=2))
    assert outer.state() == ({}, {"moved_for": 3})
    again = ReferenceSchedule(2, 0.5, learner)
    again.load_state(*outer.state())
    again.begin(TrainerState(step=2))
    assert learner.reference_version == 1
    assert again.end(result(3)).metrics == {"reference_moved": 1.0}
    again.load_state({}, {})
    assert again.state() == ({}, {})


def test_without_a_reference_nothing_moves_and_nothing_is_said() -> None:
    outer = ReferenceSchedule(1, 1.0, make_learner(kl_coef=0.0))
    assert moves(outer, 3) == []
    assert outer.state() == ({}, {})
