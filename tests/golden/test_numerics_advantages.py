"""Advantages against numbers worked out by hand: the group-relative rows and the constant group."""

import pytest
import torch
from torch import Tensor

from oncurve.advantages import (
    ADVANTAGE_KINDS,
    GAEAdvantage,
    GroupAdvantage,
    ProcessAdvantage,
    gae,
    group_advantages,
    process_advantages,
)
from oncurve.advantages.gae import whiten
from oncurve.advantages.group import constant_groups
from oncurve.batching import collate
from oncurve.losses import KLPenalty, value_loss
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

BINARY = [1.0, 0.0, 0.0, 1.0]
GRADED = [0.2, 0.5, 0.9, 0.4]


def of_one_group(rewards: list[float], **settings: object) -> Tensor:
    r = torch.tensor(rewards, dtype=torch.float64)
    return group_advantages(r, torch.ones(len(r), dtype=torch.bool), torch.zeros(len(r), dtype=torch.int64), **settings)


@pytest.mark.parametrize(
    ("settings", "rewards", "expected"),
    [
        ({}, BINARY, [0.8660239, -0.8660239, -0.8660239, 0.8660239]),
        ({}, GRADED, [-1.01904587, 0, 1.35872783, -0.33968196]),
        ({"eps": 1e-4}, BINARY, [0.86587543, -0.86587543, -0.86587543, 0.86587543]),
        ({"eps": 1e-4}, GRADED, [-1.01870329, 0, 1.35827106, -0.33956776]),
        ({"ddof": 0, "eps": 0.0}, BINARY, [1, -1, -1, 1]),
        ({"ddof": 0, "eps": 0.0}, GRADED, [-1.17669681, 0, 1.56892908, -0.39223227]),
        ({"scale": "none"}, BINARY, [0.5, -0.5, -0.5, 0.5]),
        ({"scale": "none"}, GRADED, [-0.3, 0, 0.4, -0.1]),
    ],
)
def test_one_group(settings: dict[str, object], rewards: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(
        of_one_group(rewards, **settings), torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=1e-8
    )


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1e9 / 3, -1e-30])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6])
def test_a_constant_group_is_exactly_zero(value: float, scale: str, eps: float) -> None:
    assert of_one_group([value] * 8, scale=scale, eps=eps).tolist() == [0.0] * 8
    in_float32 = torch.tensor([value] * 8 + [0.0, 1.0])
    two = group_advantages(in_float32, torch.ones(10, dtype=torch.bool), torch.tensor([0] * 8 + [1] * 2), scale, 1, eps)
    assert two[:8].tolist() == [0.0] * 8
    assert two[8] < 0 < two[9]


def test_without_eps_a_standard_deviation_below_1e_8_is_no_signal() -> None:
    assert of_one_group([0.0, 1e-9], ddof=0, eps=0.0).tolist() == [0.0, 0.0]
    assert of_one_group([0.0, 1e-7], ddof=0, eps=0.0).tolist() == [-1.0, 1.0]


def test_invalid_completions_take_no_part() -> None:
    rewards = torch.tensor([1.0, torch.nan, 0.0, 0.0, -100.0, 1.0], dtype=torch.float64)
    valid = torch.tensor([True, False, True, True, False, True])
    got = group_advantages(rewards, valid, torch.zeros(6, dtype=torch.int64))
    assert got[~valid].tolist() == [0.0, 0.0]
    torch.testing.assert_close(got[valid], of_one_group(BINARY)[[0, 1, 2, 3]])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_with_one_valid_completion_gets_nothing_and_counts_nowhere(scale: str) -> None:
    rewards = torch.tensor([50.0, 0.0, *BINARY], dtype=torch.float64)
    valid = torch.tensor([True, False, True, True, True, True])
    got = group_advantages(rewards, valid, torch.tensor([0, 0, 1, 1, 1, 1]), scale)
    assert got[:2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(got[2:], of_one_group(BINARY, scale=scale))


def test_a_batch_without_any_valid_completion_is_zero() -> None:
    none = torch.zeros(4, dtype=torch.bool)
    for scale in ("group", "batch", "none"):
        assert group_advantages(torch.ones(4), none, torch.tensor([0, 0, 1, 1]), scale).tolist() == [0.0] * 4
    assert constant_groups(torch.ones(4), none, torch.tensor([0, 0, 1, 1])).tolist() == [True, True]


def test_a_group_of_one_completion_is_refused() -> None:
    with pytest.raises(ValueError, match="group_size must be >= 2"):
        group_advantages(torch.ones(3), torch.ones(3, dtype=torch.bool), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize(
    ("rewards", "settings", "message"),
    [
        ([1.0, torch.nan], {}, "NaN or infinite"),
        ([1.0, torch.inf], {}, "NaN or infinite"),
        ([1.0, 0.0], {"ddof": 2}, "ddof must be 0 or 1"),
        ([1.0, 0.0], {"eps": -1.0}, "eps >= 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(rewards: list[float], settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_one_group(rewards, **settings)


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="one shape"):
        group_advantages(torch.ones(1), torch.ones(2, dtype=torch.bool), torch.tensor([0, 0]))


def test_constant_groups_are_found_among_valid_rewards() -> None:
    rewards, ids = torch.tensor([0.7, 0.7, 1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert constant_groups(rewards, torch.ones(6, dtype=torch.bool), ids).tolist() == [True, False, True]
    assert constant_groups(rewards, rewards != 0, ids).tolist() == [True, True, True]


def test_the_component_spreads_the_advantage_over_the_tokens_that_exist() -> None:
    def completion(length: int, index: int) -> Completion:
        return Completion((6,) * length, "", (-1.0,) * length, "eos", index, 0)

    group = Group(Prompt(0, "", (1,)), (completion(2, 0), completion(3, 1)), (Score(1.0), Score(0.0)))
    batch = collate([group])
    a = 0.5 / (0.5**0.5 + 1e-6)
    expected = torch.tensor([[a, a, 0], [-a, -a, -a]], dtype=torch.float64)
    torch.testing.assert_close(GroupAdvantage()(batch), expected)
    assert ADVANTAGE_KINDS["grpo"]().min_valid_completions == 2


def group_of(steps: list[list[float]], reward: float = 0.0, tail: int = 0) -> Group:
    """Each step is two tokens long; `tail` tokens stand behind the last one."""
    completions = tuple(
        Completion(tuple(range(2 * len(row) + tail)), "", (-1.0,) * (2 * len(row) + tail), "eos", index, 0)
        for index, row in enumerate(steps)
    )
    ends = [tuple(2 * step + 1 for step in range(len(row))) for row in steps]
    scores = tuple(Score(reward, step_ends=end, step_rewards=tuple(row)) for end, row in zip(ends, steps, strict=True))
    return Group(Prompt(0, "", (1,)), completions, scores)


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 1.0], [0.2, 0.5, 0.9, 0.4], [0.7] * 8, [0.1, 0.3]])
@pytest.mark.parametrize("settings", [{}, {"ddof": 0, "eps": 0.0}, {"scale": "none"}, {"scale": "batch"}])
def test_one_step_a_completion_is_outcome_supervision_exactly(
    rewards: list[float], settings: dict[str, object]
) -> None:
    completions = tuple(Completion((1,) * (n + 1), "", (0.0,) * (n + 1), "eos", n, 0) for n in range(len(rewards)))
    whole = tuple(Score(reward) for reward in rewards)
    stepwise = tuple(Score(0.0, step_ends=(n,), step_rewards=(reward,)) for n, reward in enumerate(rewards))
    outcome = GroupAdvantage(**settings)(collate([Group(Prompt(0, "", (1,)), completions, whole)]))
    for scores in (whole, stepwise):
        batch = collate([Group(Prompt(0, "", (1,)), completions, scores)])
        assert torch.equal(ProcessAdvantage(**settings)(batch), outcome)


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_group_whose_steps_are_all_worth_the_same_is_exactly_0(value: float) -> None:
    advantages = ProcessAdvantage()(collate([group_of([[value] * 3, [value], [value] * 4])]))
    assert advantages.abs().max() == 0


def test_completions_of_one_step_in_all_have_nothing_to_be_graded_among() -> None:
    def one(counts: list[int]) -> Tensor:
        rewards, ends = torch.tensor([[1.0], [5.0]]), torch.zeros(2, 1, dtype=torch.int64)
        groups, valid = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
        return process_advantages(rewards, ends, torch.tensor(counts), valid, groups, 1)

    assert one([1, 0]).abs().max() == 0
    assert one([0, 0]).abs().max() == 0
    assert one([1, 1]).abs().min() > 0


def one(numbers: list[float]) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


REWARDS, VALUES = one([0, 0, 1]), one([0.5, 0.4, 0.3])
ALL = torch.ones(1, 3, dtype=torch.bool)


def test_generalised_advantages_returns_and_their_whitening() -> None:
    raw, returns = gae(REWARDS, VALUES, ALL, 1.0, 0.95)
    assert raw[0].tolist() == pytest.approx([0.43675, 0.565, 0.7], abs=1e-12)
    assert returns[0].tolist() == pytest.approx([0.93675, 0.965, 1.0], abs=1e-12)
    assert whiten(raw, ALL)[0].tolist() == pytest.approx([-0.99134407, -0.01709213, 1.00843624], abs=2e-8)
    raw, _ = gae(REWARDS, VALUES, ALL, 0.9, 0.8)
    assert raw[0].tolist() == pytest.approx([0.12928, 0.374, 0.7], abs=1e-12)


def test_a_tools_token_is_skipped_not_zeroed() -> None:
    raw, returns = gae(REWARDS, VALUES, torch.tensor([[True, False, True]]), 1.0, 0.95)
    assert raw[0].tolist() == pytest.approx([0.465, 0.0, 0.7], abs=1e-12)
    assert returns[0, 1] == 0


def batch_of(reward: float, logprobs: list[float], **stats: Tensor) -> TrainBatch:
    completion = Completion(tuple(range(len(logprobs))), "", tuple(logprobs), "eos", 0, 0)
    return collate([Group(Prompt(0, "", (1,)), (completion,), (Score(reward),))]).having(**stats)


@pytest.mark.parametrize(("kl", "expected"), [(0.05, 0.00097952), (0.11, 0.00101024), (0.1, 0.001), (5.0, 0.00102048)])
def test_the_adaptive_controller(kl: float, expected: float) -> None:
    penalty = KLPenalty(where="reward", coef=0.001, target=0.1, horizon=10000)
    assert penalty.steered(0.001, kl, 1024) == pytest.approx(expected, rel=1e-12)
    assert KLPenalty(where="reward", coef=0.001).steered(0.001, kl, 1024) == 0.001


@pytest.mark.parametrize(
    ("value", "clip", "expected", "slope"), [(1.0, 0.2, 0.32, 0.8), (0.2, 0.2, 0.005, 0), (0.75, 0.25, 0.15125, 0.55)]
)
def test_the_clipped_value_loss(value: float, clip: float, expected: float, slope: float) -> None:
    """Its gradient, too: at the edge of the clip it is whole."""
    now, old, wanted = torch.tensor(value, requires_grad=True), torch.tensor(0.5), torch.tensor(0.2)
    loss = value_loss(now, old, wanted, clip)
    loss.backward()
    assert (loss.item(), now.grad.item()) == pytest.approx((expected, slope), rel=1e-6)


def test_whitening_nothing_or_one_value_gives_exactly_0() -> None:
    x = torch.full((2, 3), 0.7, dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert whiten(x, mask).abs().max() == 0
    assert whiten(x + torch.arange(6).view(2, 3), mask & False).abs().max() == 0


def test_a_truncated_completion_may_be_worth_what_the_critic_says() -> None:
    batch = batch_of(0.0, [-1.0, -1.0], values=one([0.5, 0.4]), bootstrap_values=torch.tensor([0.3]))
    ended, cut = batch.having(truncated=torch.tensor([False])), batch.having(truncated=torch.tensor([True]))
    settings = GAEAdvantage(lam=1.0, scale="none", bootstrap=True)
    assert settings(ended).advantages[0].tolist() == pytest.approx([-0.5, -0.4])
    assert settings(cut).advantages[0].tolist() == pytest.approx([-0.2, -0.1])
    assert GAEAdvantage(lam=1.0, scale="none")(cut).advantages[0].tolist() == pytest.approx([-0.5, -0.4])
