"""What trains reward models: numbers worked out by hand, gradients by central differences, extremes."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oncurve.base.imports import locate
from oncurve.batching import collate
from oncurve.losses import bradley_terry, step_cross_entropy
from oncurve.types import Completion, Group, Prompt, Score, TokenStats

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


PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
LOG_RATIOS = [0.1, -0.2, 0.3]


@pytest.fixture
def objective(tmp_path: Path) -> Callable[[str, str], Any]:
    """A class of a file of the page."""

    def find(file: str, name: str) -> Any:
        (code,) = re.findall(rf"^```python\n# {file}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        (tmp_path / file).write_text(code)
        return locate(f"{file}:{name}", tmp_path)

    return find


def losses(chosen: Any, advantage: float, log_ratios: list[float]) -> tuple[list[float], list[float]]:
    """The loss of each token, and its gradient; the log-probs are -1, one more row is padded and has advantage 0."""
    width = len(log_ratios)
    completions = tuple(
        Completion((1,) * size, "", (-1.0,) * size, "eos", index, 0) for index, size in enumerate((width, 1))
    )
    batch = collate([Group(Prompt(0, "", (1,)), completions, (Score(1.0), Score(0.0)))])
    logprobs = torch.full((2, width), -1.0, dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logprobs, math.nan)
    old[0] = torch.tensor([-1.0 - ratio for ratio in log_ratios], dtype=torch.float64)
    old[1, 0] = -1.0
    advantages = torch.zeros_like(logprobs)
    advantages[0] = advantage
    batch = batch.having(old_logprobs=old.detach(), advantages=advantages.detach())
    found = chosen(TokenStats(logprobs), batch).loss
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert not found[1].any()
    assert not gradient[1].any()
    return found[0].tolist(), gradient[0].tolist()


def test_luspo_is_the_length_times_the_surrogate_of_the_geometric_mean(objective) -> None:
    """s = exp(0.2/3) = 1.06893911; the gradient of 3 s with respect to each log-prob is s."""
    luspo = objective("luspo.py", "Luspo")
    loss, gradient = losses(luspo(clip=0.2), 1.0, LOG_RATIOS)
    assert loss == pytest.approx([-1.06893911] * 3, abs=1e-8)
    assert gradient == pytest.approx([-1.06893911] * 3, abs=1e-8)
    loss, gradient = losses(luspo(clip=0.05), 1.0, LOG_RATIOS)
    assert loss == pytest.approx([-1.05] * 3)
    assert gradient == [0.0] * 3


@pytest.mark.parametrize(("advantage", "k", "lam"), [(1.0, 2, 3), (-1.0, 3, 2)])
def test_vespo_weighs_the_gradient_by_the_whole_ratio(objective, advantage: float, k: int, lam: int) -> None:
    """W = exp(0.2) = 1.22140276, and the weight W^k e^(λ (1 - W)), which is 1 at W = 1."""
    weight = 1.22140276**k * math.exp(lam * (1 - 1.22140276))
    _, gradient = losses(objective("vespo.py", "Vespo")(), advantage, LOG_RATIOS)
    assert gradient == pytest.approx([-advantage * weight] * 3, abs=1e-8)
    _, gradient = losses(objective("vespo.py", "Vespo")(), advantage, [0.1, 0.1, -0.2])
    assert gradient == pytest.approx([-advantage] * 3)


def test_fipo_weighs_an_advantage_by_what_follows(objective) -> None:
    """γ = 1/2: log-ratios .1, -.2, .3 give the sums .1 - .1 + .075, -.2 + .15, .3; e^.3 is clipped to 1.2."""
    fipo = objective("fipo.py", "Fipo")(half_life=1.0, clip_high=1.0)
    loss, _ = losses(fipo, 1.0, LOG_RATIOS)
    influence = [math.exp(0.075), math.exp(-0.05), 1.2]
    assert loss == pytest.approx([-f * math.exp(d) for f, d in zip(influence, LOG_RATIOS, strict=True)])
    loss, _ = losses(fipo, 1.0, [0.1, 2.4])  # the second ratio is above 10, so only the first token counts
    assert loss[0] == pytest.approx(-math.exp(0.1) * math.exp(0.1))
