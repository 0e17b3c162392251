"""Generalised advantages are what a double sum over the trained tokens gives, whatever is skipped."""

import random

import pytest
import torch

from oncurve.advantages import GAEAdvantage, gae
from oncurve.batching import collate, token_rewards
from oncurve.types import Completion, Group, Prompt, Score
from oracles.plain_gae import plain_gae


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_sums_give(seed):
    rng = random.Random(seed)
    rows, width = rng.randint(1, 4), rng.randint(1, 7)
    rewards, values = ([[rng.gauss(0, 1) for _ in range(width)] for _ in range(rows)] for _ in range(2))
    mask = [[rng.random() < 0.7 for _ in range(width)] for _ in range(rows)]
    mask = [row if any(row) else [True] * width for row in mask]
    beyond = [rng.choice([0.0, rng.gauss(0, 1)]) for _ in range(rows)]
    gamma, lam = rng.choice([1.0, 0.9]), rng.choice([0.0, 0.5, 1.0])
    tensors = (torch.tensor(rewards), torch.tensor(values), torch.tensor(mask))
    advantages, returns = gae(*tensors, gamma, lam, torch.tensor(beyond))
    for row in range(rows):
        first = mask[row].index(True)  # a reward before any trained token reaches nobody
        plain = [0.0] * first + rewards[row][first:]
        wanted = plain_gae(plain, values[row], mask[row], gamma, lam, beyond[row])
        assert advantages[row].tolist() == pytest.approx(wanted[0], abs=1e-5)
        assert returns[row].tolist() == pytest.approx(wanted[1], abs=1e-5)


def test_step_rewards_stand_at_their_ends_and_take_the_place_of_the_whole():
    completion = Completion((1, 2, 3, 4), "", (-1.0,) * 4, "eos", 0, 0)
    scores = (
        Score(9.0, step_ends=(1, 1, 3), step_rewards=(0.5, 0.25, -1.0)),
        Score(2.0),
        Score(0.0, valid=False),
    )
    batch = collate([Group(Prompt(0, "", (1,)), (completion,) * 3, scores)])
    assert token_rewards(batch).tolist() == [[0, 0.75, 0, -1.0], [0, 0, 0, 2.0], [0, 0, 0, 0]]


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_that_differ_and_missing_values_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        gae(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool))
    batch = collate([Group(Prompt(0, "", (1,)), (Completion((1,), "", (0.0,), "eos", 0, 0),), (Score(1.0),))])
    with pytest.raises(ValueError, match="critic"):
        GAEAdvantage()(batch)
    with pytest.raises(ValueError, match="after the last"):
        GAEAdvantage(bootstrap=True)(batch.having(values=torch.zeros(1, 1)))
