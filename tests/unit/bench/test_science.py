"""The closed forms and the curves of the experiments of docs/science.md."""

import math
from itertools import product

import pytest
import torch
from bench.science.curriculum import reached
from bench.science.deviation import factor
from bench.science.runs import interval

from oncurve.advantages.group import group_advantages


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
def test_the_factor_of_a_pass_rate_is_that_of_all_groups(scale, rate):
    total = 0.0
    for outcomes in product([0.0, 1.0], repeat=4):
        chance = math.prod(rate if right else 1 - rate for right in outcomes)
        valid, ids = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
        found = group_advantages(torch.tensor(outcomes, dtype=torch.float64), valid, ids, scale, eps=0.0)
        scores = torch.tensor([1 / rate if right else -1 / (1 - rate) for right in outcomes], dtype=torch.float64)
        total += chance * float((found * scores).mean())
    assert factor(rate, scale, 4) == pytest.approx(total, rel=1e-9)


def test_a_curve_reaches_its_target_between_two_evaluations():
    assert reached([[0, 0.5], [10, 0.7], [20, 0.9]], 0.8) == pytest.approx(15)
    assert reached([[0, 0.5], [10, 0.7]], 0.8) == math.inf
    assert interval([1.0, 3.0]) == pytest.approx((2.0, 12.71))
