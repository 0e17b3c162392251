"""The schedule of the reference's moves: at which steps, and never twice for one."""

from pathlib import Path

import pytest

from fakes.learning import make_learner
from oncurve.learner import ReferenceSettings
from oncurve.trainer import OuterLoop, ReferenceSchedule, StepResult, TrainerState


def moves(outer: ReferenceSchedule, steps: int, begun: int = 1) -> list[int]:
    """The steps (from 1) that began with a move; each is begun `begun` times."""
    found = []
    for done in range(steps):
        for _ in range(begun):
            outer.before_step(TrainerState(step=done))
        if outer.after_step(result(done + 1)).metrics.get("reference/moved"):
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
    outer: OuterLoop = ReferenceSchedule(ReferenceSettings(every=every, mixup_alpha=0.5), learner)
    assert moves(outer, 7, begun) == steps
    assert learner.reference.version == len(steps)


def test_what_it_saves_is_the_step_it_moved_for(tmp_path: Path) -> None:
    learner = make_learner()
    outer = ReferenceSchedule(ReferenceSettings(every=2, mixup_alpha=0.5), learner)
    assert outer.save(tmp_path) == {}
    outer.before_step(TrainerState(step=2))
    assert outer.save(tmp_path) == {"moved_for": 3}
    again = ReferenceSchedule(ReferenceSettings(every=2, mixup_alpha=0.5), learner)
    again.load(tmp_path, outer.save(tmp_path))
    again.before_step(TrainerState(step=2))
    assert learner.reference.version == 1
    assert again.after_step(result(3)).metrics == {"reference/moved": 1.0}
    again.load(tmp_path, {})
    assert again.save(tmp_path) == {}
    assert not any(tmp_path.iterdir())
