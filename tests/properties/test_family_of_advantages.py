"""What the advantages of the GRPO family are in expectation, and what they do not change under.

The expectation is exact: over all groups of G answers of a softmax over a few answers, each with its probability.
"""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from oncurve.advantages import (
    ADVANTAGE_KINDS,
    GroupAdvantage,
    group_advantages,
    maxrl_advantages,
    passk_advantages,
    rloo_advantages,
)
from oncurve.batching import collate
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

Grader = Callable[[Tensor], Tensor]
LOGITS = (0.3, -0.4, 0.9)
RIGHT = (1.0, 0.0, 0.0)
VALUES = (0.2, 1.0, 0.5)


def expected_gradient(rewards: tuple[float, ...], size: int, advantages: Grader) -> Tensor:
    """E[Σ_i A_i ∇log π(o_i)] over all groups of `size`, with respect to the logits `(answers,)`."""
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    policy = torch.softmax(logits, 0)
    scores = torch.eye(len(LOGITS), dtype=torch.float64) - policy  # row a: ∇log π(a)
    total = torch.zeros_like(policy)
    for answers in product(range(len(LOGITS)), repeat=size):
        chance = math.prod(float(policy[a]) for a in answers)
        given = advantages(torch.tensor([rewards[a] for a in answers], dtype=torch.float64))
        total += chance * (given[:, None] * scores[list(answers)]).sum(0)
    return total


def gradient(value: Callable[[Tensor], Tensor]) -> Tensor:
    """∇ value(π) with respect to the logits."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(torch.softmax(logits, 0)), logits)
    return slope


def one_group(r: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones(len(r), dtype=torch.bool), torch.zeros(len(r), dtype=torch.int64)


def same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rloo_is_unbiased_and_the_group_mean_is_short_by_a_factor(size: int) -> None:
    exact = gradient(lambda policy: (policy * torch.tensor(VALUES, dtype=torch.float64)).sum())
    same(expected_gradient(VALUES, size, lambda r: rloo_advantages(r, *one_group(r)) / size), exact)
    centred = expected_gradient(VALUES, size, lambda r: group_advantages(r, *one_group(r), scale="none") / size)
    same(centred, exact * (size - 1) / size)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_maxrl_is_a_truncation_of_the_maximum_likelihood_gradient(size: int) -> None:
    """log p = -Σ_{k>=1} (1-p)^k/k. An estimator without a baseline has G terms; the baseline takes off the last."""

    def truncated(order: int) -> Tensor:
        right = torch.tensor(RIGHT, dtype=torch.float64)
        return gradient(lambda policy: -sum((1 - (policy * right).sum()) ** k / k for k in range(1, order + 1)))

    def without_baseline(r: Tensor) -> Tensor:
        return r / r.sum().clamp(min=1)

    same(expected_gradient(RIGHT, size, without_baseline), truncated(size))
    ours = expected_gradient(RIGHT, size, lambda r: maxrl_advantages(r, *one_group(r), eps=0.0) / size)
    same(ours, truncated(size - 1))
    with_zero_mean = expected_gradient(
        RIGHT, size, lambda r: maxrl_advantages(r, *one_group(r), eps=0.0) / size - float(r.sum() == 0) / size
    )
    same(with_zero_mean, truncated(size))  # with -1 for all of an all-wrong group it is of order G


@pytest.mark.parametrize("size", [2, 3, 4])
def test_passk_without_the_deviation_is_the_gradient_of_the_expected_best(size: int) -> None:
    def best(rewards: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
        def value(policy: Tensor) -> Tensor:
            groups = list(product(range(len(LOGITS)), repeat=size))
            return sum(
                (policy[list(answers)].prod() * max(rewards[a] for a in answers) for answers in groups),
                torch.zeros((), dtype=torch.float64),
            )

        return value

    for rewards in (VALUES, RIGHT):
        ours = expected_gradient(rewards, size, lambda r: passk_advantages(r, *one_group(r), "none"))
        same(ours, gradient(best(rewards)))
    same(gradient(best(RIGHT)), gradient(lambda p: 1 - (1 - p[0]) ** size))  # which is pass@G


def batch_of(rewards: list[list[float]], lengths: list[list[int]]) -> TrainBatch:
    return collate(
        [
            Group(
                Prompt(number, "", (1,)),
                tuple(Completion((1,) * n, "", (0.0,) * n, "eos", i, 0) for i, n in enumerate(sizes)),
                tuple(Score(r) for r in group),
            )
            for number, (group, sizes) in enumerate(zip(rewards, lengths, strict=True))
        ]
    )


SCALE, SHIFT = {"grpo", "process", "reinforce_pp", "reinforce_pp_baseline", "gdpo", "passk"}, {"rloo", "opo"}


@pytest.mark.parametrize("kind", sorted(SCALE | SHIFT | {"maxrl"}))
@given(
    rewards=st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3), min_size=1, max_size=3),
    factor=st.floats(0.5, 8),
    shift=st.floats(-4, 4),
    seed=st.integers(0, 999),
)
@settings(max_examples=10)
def test_scaling_and_shifting_rewards(kind: str, rewards: list[list[int]], factor: float, shift: float, seed: int):
    """With a deviation both change nothing; leave-one-out and OPO scale with the rewards; MaxRL may only be scaled."""
    lengths = torch.randint(1, 5, (len(rewards), 3), generator=torch.Generator().manual_seed(seed)).tolist()
    exact = {"eps": 0.0} if "eps" in ADVANTAGE_KINDS[kind].model_fields else {}
    advantage = ADVANTAGE_KINDS[kind](**exact)
    before = advantage(batch_of([[r / 4 for r in group] for group in rewards], lengths))
    shift = 0.0 if kind == "maxrl" else shift
    after = advantage(batch_of([[factor * (r / 4) + shift for r in group] for group in rewards], lengths))
    expected = before * factor if kind in SHIFT else before
    tolerance = 1e-5 if "reinforce" in kind else 1e-9  # whitening adds 1e-8 to the variance
    torch.testing.assert_close(after, expected, atol=tolerance, rtol=tolerance)


def test_one_reward_makes_gdpo_the_group_advantage_on_the_scale_of_the_batch() -> None:
    batch = batch_of([[1, 0, 0, 1], [1, 0, 0, 0]], [[1] * 4] * 2)
    grpo, gdpo = GroupAdvantage(eps=0.0)(batch), ADVANTAGE_KINDS["gdpo"](eps=0.0)(batch)
    torch.testing.assert_close(gdpo, grpo / grpo.flatten().std())
