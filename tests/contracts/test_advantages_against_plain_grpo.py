"""The advantages of the GRPO family agree with the slow ones, on groups of any kind: gaps, faults, ties, one value."""

import math
import random

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fakes.tolerance import assert_close
from oncurve.advantages import (
    GDPOAdvantage,
    MaxRLAdvantage,
    OPOAdvantage,
    PassKAdvantage,
    ReinforcePPAdvantage,
    ReinforcePPBaselineAdvantage,
    RLOOAdvantage,
)
from oncurve.batching import collate
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch
from oracles import plain_advantages as family
from oracles.plain_grpo import advantages

WEIGHTS = (1.0, 0.5, -0.3)


def random_groups(rng: random.Random) -> list[Group]:
    """One to four groups of two to five completions; some are not valid, some tokens are not trained."""
    groups = []
    for number in range(rng.randint(1, 4)):
        completions, scores = [], []
        for index in range(rng.randint(2, 5)):
            length = rng.randint(1, 5)
            trained = tuple(rng.random() < 0.7 for _ in range(length))
            completions.append(Completion((3,) * length, "", (-1.0,) * length, "eos", index, 0, trained))
            parts = {str(k): None if k and rng.random() < 0.2 else rng.choice([0.0, 0.25, 1.0]) for k in range(3)}
            valid = rng.random() < 0.85
            scores.append(Score(rng.choice([0.0, 0.5, 0.5, 2.0]) if valid else 0.0, valid, parts, weights=WEIGHTS))
        groups.append(Group(Prompt(number, "", (1,)), tuple(completions), tuple(scores)))
    return groups


def rewards(groups: list[Group]) -> list[list[float | None]]:
    return [[score.reward if score.valid else None for score in group.scores] for group in groups]


def check(got: Tensor, batch: TrainBatch, per_completion: list[list[float]]) -> None:
    expected = torch.tensor([x for group in per_completion for x in group], dtype=torch.float64)[:, None]
    torch.testing.assert_close(got, expected * batch.existing(), atol=1e-12, rtol=1e-10)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_outcome_advantages(seed: int) -> None:
    groups = random_groups(random.Random(seed))
    batch = collate(groups)
    given = rewards(groups)
    lengths = [[sum(c.trained or ()) for c in group.completions] for group in groups]
    check(RLOOAdvantage()(batch), batch, family.rloo(given))
    check(MaxRLAdvantage(eps=1e-3)(batch), batch, family.maxrl(given, 1e-3))
    check(OPOAdvantage()(batch), batch, family.opo(given, lengths))
    check(PassKAdvantage(ddof=0, eps=0.1)(batch), batch, family.passk(given, 0, 0.1))
    check(PassKAdvantage(scale="none")(batch), batch, family.passk(given, 0, None))
    values = [
        [[math.nan if v is None else v for v in s.parts.values()] if s.valid else None for s in group.scores]
        for group in groups
    ]
    for ddof in (0, 1):
        right = family.gdpo(values, list(WEIGHTS), ddof, 1e-3)
        check(GDPOAdvantage(ddof=ddof, eps=1e-3)(batch), batch, right)
        mask = batch.loss_mask.tolist()
        rows = [[x or 0.0] * batch.loss_mask.shape[1] for group in right for x in group]
        got = GDPOAdvantage(ddof=ddof, eps=1e-3, scale="tokens")(batch)
        whole = torch.tensor(family.whitened(rows, mask), dtype=torch.float64)  # whose scale and shift change nothing
        assert_close(got, whole, torch.float32)  # eps stands outside of the scale


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=12)
def test_advantages_of_tokens(gamma: float, seed: int) -> None:
    groups = random_groups(random.Random(seed))
    batch = collate(groups)
    noise = torch.randn(batch.loss_mask.shape, generator=torch.Generator().manual_seed(seed)).double()
    batch = batch.having(token_rewards=batch.token_rewards + noise * batch.loss_mask)  # as a KL in the reward
    mask = batch.loss_mask.tolist()
    to_go = family.rewards_to_go(batch.token_rewards.tolist(), mask, gamma)
    got = ReinforcePPAdvantage(gamma=gamma)(batch)
    torch.testing.assert_close(
        got, torch.tensor(family.whitened(to_go, mask), dtype=torch.float64), atol=1e-12, rtol=1e-9
    )
    centred = advantages(rewards(groups), "none", 1, 0.0)
    rows = [[x or 0.0] * batch.loss_mask.shape[1] for group in centred for x in group]
    got = ReinforcePPBaselineAdvantage()(batch)
    torch.testing.assert_close(
        got, torch.tensor(family.whitened(rows, mask), dtype=torch.float64), atol=1e-12, rtol=1e-9
    )
