"""Process supervision is what loops over groups, steps and tokens give, whatever the batch looks like."""

import random

import pytest
import torch

from oncurve.advantages import process_advantages
from oracles.plain_process import plain_process_advantages


def random_groups(rng: random.Random) -> list[list[tuple[int, list[tuple[int, float]]]]]:
    def completion() -> tuple[int, list[tuple[int, float]]]:
        length = rng.randint(1, 9)
        ends = sorted(rng.randrange(length) for _ in range(rng.randint(0, 4)))  # two may share a token
        return length, [(end, rng.choice([0.0, 0.25, 1.0, rng.gauss(0, 3)])) for end in ends]

    return [[completion() for _ in range(rng.randint(2, 5))] for _ in range(rng.randint(1, 4))]


def tensors(groups, spoiled=None):
    rows = [row for group in groups for row in group]
    most = max(1, max(len(steps) for _, steps in rows))
    rewards = torch.full((len(rows), most), 99.0, dtype=torch.float64)
    ends = torch.full((len(rows), most), -7)
    for index, (_, steps) in enumerate(rows):
        for column, (end, reward) in enumerate(steps):
            rewards[index, column], ends[index, column] = reward, end
    counts = torch.tensor([len(steps) for _, steps in rows])
    valid = torch.tensor([index != spoiled for index in range(len(rows))])
    group_ids = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    return rewards, ends, counts, valid, group_ids, max(length for length, _ in rows)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_loops_give(seed, ddof):
    groups = random_groups(random.Random(seed))
    got = process_advantages(*tensors(groups), ddof=ddof)
    wanted = [row for group in plain_process_advantages(groups, ddof) for row in group]
    for row, numbers in zip(got, wanted, strict=True):
        assert row[: len(numbers)].tolist() == pytest.approx(numbers, abs=1e-10)
        assert row[len(numbers) :].tolist() == [0.0] * (len(row) - len(numbers))


@pytest.mark.parametrize("seed", range(20))
def test_a_completion_that_is_not_valid_is_as_if_it_were_not_there(seed):
    groups = random_groups(random.Random(seed))
    got = process_advantages(*tensors(groups, spoiled=1))
    groups[0][1] = (groups[0][1][0], [])
    assert torch.equal(got, process_advantages(*tensors(groups)))
    assert got[1].abs().max() == 0


@pytest.mark.parametrize("seed", range(20))
def test_scaling_and_moving_all_rewards_changes_nothing(seed):
    groups = random_groups(random.Random(seed))
    rewards, *others = tensors(groups)
    torch.testing.assert_close(
        process_advantages(3.0 * rewards + 5.0, *others, eps=0.0), process_advantages(rewards, *others, eps=0.0)
    )


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_that_do_not_fit_and_steps_outside_a_row_are_refused():
    rewards, ends, counts, valid, group_ids, length = tensors([[(3, [(2, 1.0)]), (3, [(1, 0.0)])]])
    with pytest.raises(ValueError, match="do not fit"):
        process_advantages(rewards, ends[:1], counts, valid, group_ids, length)
    with pytest.raises(ValueError, match="steps end at tokens 0 to 1 of a row, got"):
        process_advantages(rewards, ends, counts, valid, group_ids, 2)
