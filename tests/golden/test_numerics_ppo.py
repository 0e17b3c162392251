"""PPO's parts against numbers worked out by hand: GAE, whitening, KL in the reward, its controller, value loss."""

import pytest
import torch
from torch import Tensor

from oncurve.advantages import GAEAdvantage, gae, whiten
from oncurve.batching import collate
from oncurve.losses import KLPenalty, value_loss
from oncurve.metrics import Metrics
from oncurve.trainer import KLControl
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch


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


def test_with_gamma_and_lambda_1_it_is_the_reward_to_come_less_the_value() -> None:
    raw, returns = gae(one([0.5, -0.25, 1]), VALUES, ALL, 1.0, 1.0)
    assert raw[0].tolist() == pytest.approx([1.25 - 0.5, 0.75 - 0.4, 1 - 0.3], abs=1e-12)
    assert returns[0].tolist() == pytest.approx([1.25, 0.75, 1.0], abs=1e-12)


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "lam", "expected"),
    [
        ([1.0, 2.0, 3.0], [0.5, 1.0, 1.5], 0.5, 1.0, [2.75, 3.5, 3.0]),
        ([1.0, 2.0, 3.0], [0.5, 1.0, 1.5], 1.0, 0.5, [3.625, 4.25, 3.0]),
        ([0, 0, 0, 1], [0, 0, 0, 1], 0.9, 0.95, [0.6579225, 0.7695, 0.9, 1.0]),
    ],
)
def test_returns_of_other_projects_tests(
    rewards: list[float], values: list[float], gamma: float, lam: float, expected: list[float]
) -> None:
    mask = torch.ones(1, len(rewards), dtype=torch.bool)
    _, returns = gae(one(rewards), one(values), mask, gamma, lam)
    assert returns[0].tolist() == pytest.approx(expected, abs=1e-6)


def batch_of(reward: float, logprobs: list[float], **stats: Tensor) -> TrainBatch:
    completion = Completion(tuple(range(len(logprobs))), "", tuple(logprobs), "eos", 0, 0)
    return collate([Group(Prompt(0, "", (1,)), (completion,), (Score(reward),))]).having(**stats)


def test_the_kl_in_the_reward_adds_up_to_that_of_the_completion() -> None:
    old, reference, beta = [-1.0, -2.0, -0.5], one([-1.5, -1.0, -0.25]), 0.1
    batch = batch_of(2.0, old, ref_logprobs=reference)
    control, metrics = KLControl(KLPenalty(where="reward", coef=beta)), Metrics()
    penalised = control.add_kl_to_rewards(batch, None, metrics)
    r = penalised.token_rewards
    assert r[0].tolist() == pytest.approx([-0.05, 0.1, 2.025], abs=1e-12)
    assert float(r.sum()) == pytest.approx(2.0 - beta * (sum(old) - float(reference.sum())), abs=1e-12)
    assert float(penalised.rewards) == pytest.approx(float(r.sum()), abs=1e-12)
    k1 = (0.5 - 1.0 - 0.25) / 3
    assert metrics.result() == pytest.approx(
        {"policy/kl_coef": beta, "policy/kl": k1, "policy/kl_completion_mean": k1}, abs=1e-12
    )


@pytest.mark.parametrize(("kl", "expected"), [(0.05, 0.00097952), (0.11, 0.00101024), (0.1, 0.001), (5.0, 0.00102048)])
def test_the_adaptive_controller(kl: float, expected: float) -> None:
    penalty = KLPenalty(where="reward", coef=0.001, target=0.1, horizon=10000)
    assert penalty.steered(0.001, kl, 1024) == pytest.approx(expected, rel=1e-12)
    assert KLPenalty(where="reward", coef=0.001).steered(0.001, kl, 1024) == 0.001


@pytest.mark.parametrize(("value", "expected"), [(1.0, 0.32), (0.2, 0.005)])
def test_the_clipped_value_loss(value: float, expected: float) -> None:
    old, wanted = torch.tensor(0.5), torch.tensor(0.2)
    assert float(value_loss(torch.tensor(value), old, wanted, 0.2)) == pytest.approx(expected, rel=1e-6)


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
