"""Group advantages of batches laid out in any way, against the formula written out with Python's `statistics`."""

import statistics

import pytest
import torch

from oncurve.advantages import group_advantages
from oncurve.advantages.group import Scale

LAYOUTS = {
    "even": [0, 0, 0, 0, 1, 1, 1, 1],
    "sizes differ": [0, 0, 0, 0, 0, 1, 1, 1],
    "not adjacent": [0, 1, 0, 1, 0, 1, 0, 1],
    "not in order": [1, 1, 1, 1, 0, 0, 0, 0],
    "not from 0": [3, 3, 3, 3, 1, 1, 1, 1],
}


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("constant", [False, True])
def test_the_formula(scale: Scale, ddof: int, eps: float, layout: str, constant: bool) -> None:
    ids = LAYOUTS[layout]
    drawn = [0.1, 0.9, 0.4, 1.0, 0.3, 0.0, 2.0, 0.8]
    rewards = [0.7 if constant and i == ids[0] else reward for i, reward in zip(ids, drawn, strict=True)]
    deviation = statistics.stdev if ddof else statistics.pstdev
    expected = []
    for reward, own in zip(rewards, ids, strict=True):
        siblings = [other for other, i in zip(rewards, ids, strict=True) if i == own]
        divisor = {"group": deviation(siblings) + eps, "batch": deviation(rewards) + eps, "none": 1.0}[scale]
        expected.append(0.0 if len(set(siblings)) == 1 else (reward - statistics.fmean(siblings)) / divisor)
    found = group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.ones(8, dtype=torch.bool), torch.tensor(ids), scale, ddof, eps
    )
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-13, rtol=1e-12)
    if constant:
        assert [value for value, i in zip(found.tolist(), ids, strict=True) if i == ids[0]] == [0.0] * ids.count(ids[0])


def test_what_it_is_given_is_not_changed() -> None:
    ids = torch.arange(4).repeat_interleave(3)
    valid = torch.ones(12, dtype=torch.bool)
    rewards = torch.arange(12, dtype=torch.float64)
    group_advantages(rewards, valid, ids)
    assert rewards.tolist() == list(range(12))
    every_other = torch.arange(24, dtype=torch.float64)[::2]
    torch.testing.assert_close(
        group_advantages(every_other, valid, ids), group_advantages(every_other.clone(), valid, ids)
    )
