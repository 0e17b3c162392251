"""Process supervision against numbers worked out by hand (DeepSeekMath, arXiv:2402.03300, section 4.1.3)."""

import pytest
import torch
from torch import Tensor

from oncurve.advantages import ADVANTAGE_KINDS, GroupAdvantage, ProcessAdvantage, process_advantages
from oncurve.batching import collate
from oncurve.types import Completion, Group, Prompt, Score

R = [[0.2, 0.8], [0.6], [0.1, 0.9, 0.5]]


def group_of(steps: list[list[float]], reward: float = 0.0, tail: int = 0) -> Group:
    """Each step is two tokens long; `tail` tokens stand behind the last one."""
    completions = tuple(
        Completion(tuple(range(2 * len(row) + tail)), "", (-1.0,) * (2 * len(row) + tail), "eos", index, 0)
        for index, row in enumerate(steps)
    )
    ends = [tuple(2 * step + 1 for step in range(len(row))) for row in steps]
    scores = tuple(Score(reward, step_ends=end, step_rewards=tuple(row)) for end, row in zip(ends, steps, strict=True))
    return Group(Prompt(0, "", (1,)), completions, scores)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"eps": 0.0},
            [[-0.10454167, 0.88860423], [0.26135419], [-0.15681251, 1.14995842, -0.05227084]],
        ),
        (
            {"ddof": 0, "eps": 0.0},
            [[-0.11451967, 0.97341717], [0.28629917], [-0.1717795, 1.25971634, -0.05725983]],
        ),
    ],
)
def test_pooled_over_the_group_and_summed_from_the_end(
    settings: dict[str, object], expected: list[list[float]]
) -> None:
    got = ADVANTAGE_KINDS["process"](**settings)(collate([group_of(R)]))
    assert got.dtype == torch.float64
    for row, wanted in zip(got, expected, strict=True):
        by_token = torch.tensor([value for value in wanted for _ in range(2)], dtype=torch.float64)
        torch.testing.assert_close(row[: len(by_token)], by_token, atol=1e-8, rtol=0)
        assert row[len(by_token) :].tolist() == [0.0] * (len(row) - len(by_token))


def test_tokens_behind_the_last_step_get_nothing() -> None:
    advantages = ProcessAdvantage()(collate([group_of(R, tail=3)]))
    assert advantages[0, 4:].abs().max() == advantages[1, 2:].abs().max() == advantages[2, 6:].abs().max() == 0


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
