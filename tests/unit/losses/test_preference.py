"""What trains reward models: numbers worked out by hand, gradients by central differences, extremes."""

import math

import pytest
import torch
from torch import Tensor

from oncurve.losses import bradley_terry, step_cross_entropy
from oracles.finite_differences import autograd_gradient, finite_difference_gradient

LN2 = math.log(2)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pair_costs_minus_the_log_of_the_chance_that_the_chosen_wins() -> None:
    loss = bradley_terry(numbers(0, 1, 0, 3), numbers(0, 0, 1, 3))
    assert loss.tolist() == pytest.approx([LN2, 0.3132616875182228, 1.3132616875182228, LN2], abs=1e-15)


def test_a_margin_is_taken_off_the_difference() -> None:
    loss = bradley_terry(numbers(1, 1, 0), numbers(0, 0, 0), numbers(1, 0, -1))
    assert loss.tolist() == pytest.approx([LN2, 0.3132616875182228, 0.3132616875182228], abs=1e-15)
    assert bradley_terry(numbers(1), numbers(0), 1.0).item() == pytest.approx(LN2, abs=1e-15)


def test_center_draws_the_two_rewards_towards_zero() -> None:
    loss = bradley_terry(numbers(1, 2, 1), numbers(0, 2, -1), center=0.5)
    assert loss.tolist() == pytest.approx([0.3132616875182228 + 0.5, LN2 + 8.0, 0.1269280110429725], abs=1e-15)


def test_a_step_costs_the_cross_entropy_of_its_label() -> None:
    verdicts = numbers(math.log(3), math.log(3), math.log(3), 0, 0, 0)  # three of p = 3/4, then p = 1/2
    labels = numbers(1, 0, 0.5, 1, 0, 0.25)
    mean_of_both = (math.log(4 / 3) + math.log(4)) / 2
    wanted = [math.log(4 / 3), math.log(4), mean_of_both, LN2, LN2, LN2]
    assert step_cross_entropy(verdicts, labels).tolist() == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("center", [0.0, 0.3])
def test_the_gradient_of_pairs_is_that_of_central_differences(center: float) -> None:
    rewards, margins = numbers(0.3, -1.2, 2.0, 0.1, 0.4, -0.7), numbers(0.0, 0.5, -0.2)

    def loss(x: Tensor) -> Tensor:
        return bradley_terry(x[:3], x[3:], margins, center).sum()

    numeric, exact = finite_difference_gradient(loss, rewards), autograd_gradient(loss, rewards)
    torch.testing.assert_close(exact, numeric, rtol=1e-7, atol=1e-8)
    lost = torch.sigmoid(-(rewards[:3] - rewards[3:] - margins))
    drawn = 2 * center * (rewards[:3] + rewards[3:])
    torch.testing.assert_close(exact, torch.cat([drawn - lost, drawn + lost]))


def test_the_gradient_of_steps_is_that_of_central_differences() -> None:
    verdicts, labels = numbers(0.3, -1.2, 2.0, 0.0), numbers(1.0, 0.0, 0.25, 0.6)

    def loss(x: Tensor) -> Tensor:
        return step_cross_entropy(x, labels).sum()

    exact = autograd_gradient(loss, verdicts)
    torch.testing.assert_close(exact, finite_difference_gradient(loss, verdicts), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(exact, torch.sigmoid(verdicts) - labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_rewards_stay_finite(dtype: torch.dtype) -> None:
    high, low = torch.tensor([1e4, -1e4], dtype=dtype), torch.tensor([-1e4, 1e4], dtype=dtype)
    assert bradley_terry(high, low).tolist() == [0.0, 2e4]
    right = torch.ones(2, dtype=dtype)
    assert step_cross_entropy(high, right).tolist() == [0.0, 1e4]
    assert step_cross_entropy(high, 1 - right).tolist() == [1e4, 0.0]
    leaf = high.clone().requires_grad_()
    (bradley_terry(leaf, low, center=0.01) + step_cross_entropy(leaf, right)).sum().backward()
    assert leaf.grad.isfinite().all()
