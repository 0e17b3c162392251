"""Advantages against numbers worked out by hand: the group-relative rows and the constant group."""

import pytest
import torch
from torch import Tensor

from oncurve.advantages import ADVANTAGE_KINDS, GroupAdvantage, constant_groups, group_advantages
from oncurve.batching import collate
from oncurve.types import Completion, Group, Prompt, Score

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


def test_batch_standard_deviation_divides_by_that_of_all_rewards() -> None:
    rewards = torch.tensor([1.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    got = group_advantages(rewards, torch.ones(4, dtype=torch.bool), torch.tensor([0, 0, 1, 1]), scale="batch")
    std = (((rewards - 1.25) ** 2).sum() / 3).sqrt()  # mean of all four is 1.25
    torch.testing.assert_close(got, torch.tensor([0.5, -0.5, 1.0, -1.0], dtype=torch.float64) / (std + 1e-6))


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


def test_ragged_groups_are_graded_each_by_itself() -> None:
    rewards = torch.tensor([*BINARY, 7.0, 9.0, *GRADED], dtype=torch.float64)
    got = group_advantages(rewards, torch.ones(10, dtype=torch.bool), torch.tensor([0] * 4 + [1] * 2 + [2] * 4))
    torch.testing.assert_close(got, torch.cat([of_one_group(g) for g in (BINARY, [7.0, 9.0], GRADED)]))


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
