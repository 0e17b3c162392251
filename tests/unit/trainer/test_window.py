"""Which step trains a group: all room is used, no group gets too old, and the first to finish goes first."""

from random import Random

import pytest

from oncurve.trainer import Window
from oncurve.types import Group, Prompt


def group(position: int) -> Group:
    return Group(Prompt(position, "", (1,)), ())


def test_the_groups_that_are_finished_first_are_trained_first() -> None:
    window = Window(prompts=2, lag=1, done=0)
    for position in range(4):
        window.begins(position)
    assert [window.finished(position, group(position)) for position in (3, 1, 0, 2)] == [1, 1, 2, 2]
    assert window.complete(1)
    assert window.positions(1) == (3, 1)
    assert [each.prompt.id for each in window.groups(1, after=1)] == [1]


def test_room_is_kept_for_a_group_that_must_not_get_older() -> None:
    window = Window(prompts=2, lag=1, done=5)
    for position in range(4):
        window.begins(position)  # with the weights after step 5: by step 7
    assert window.finished(1, group(1)) == 6
    window.newest(6)
    for position in (4, 5):
        window.begins(position)  # by step 8
    # 0, 2 and 3 need all the room that steps 6 and 7 still have.
    assert [window.finished(position, group(position)) for position in (4, 5, 3, 0, 2)] == [8, 8, 6, 7, 7]


def test_a_group_that_nothing_was_planned_for_is_an_error() -> None:
    window = Window(prompts=1, lag=1, done=0)
    for position in range(3):
        window.begins(position)
    assert [window.finished(position, group(position)) for position in (2, 1)] == [1, 2]
    with pytest.raises(ValueError, match="no step up to 2 has room for the group at 0"):
        window.finished(0, group(0))


@pytest.mark.parametrize("seed", range(30))
def test_every_step_is_full_and_no_group_too_old_whatever_the_order(seed: int) -> None:
    draw = Random(seed)
    prompts, lag, steps, workers = draw.randint(1, 5), draw.randint(1, 4), 30, draw.randint(1, 12)
    window, began = Window(prompts, lag, 0), dict[int, int]()
    queued, growing, finished = list(range(prompts * (1 + lag))), list[int](), 0
    found: list[tuple[int, ...]] = []
    while len(found) < steps:
        while queued and len(growing) < workers:
            growing.append(queued.pop(0))
            began[growing[-1]] = len(found)
            window.begins(growing[-1])
        if growing and draw.random() < 0.8:
            over = growing.pop(draw.randrange(len(growing)) if draw.random() < 0.7 else -1)
            window.finished(over, group(over))
            finished += 1
        elif window.complete(len(found) + 1):
            found.append(window.positions(len(found) + 1))
            first = prompts * (len(found) + lag)
            queued += range(first, first + prompts)
            window.newest(len(found))
    trained = [position for step in found for position in step]
    assert len(set(trained)) == len(trained) == prompts * steps
    for done, positions in enumerate(found):
        assert all(0 <= done - began[position] <= lag for position in positions)
