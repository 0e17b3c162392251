"""GSPO, GMPO, CISPO, SAPO and DPPO against numbers worked out by hand, gradients included."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.batches import rows_of
from fakes.tables import table
from oncurve.losses import (
    Cispo,
    Dppo,
    Gmpo,
    Gspo,
    Objective,
    Sapo,
    binary_kl,
    binary_tv,
    corrects_for_sampler,
    soft_gate,
)
from oncurve.types import TokenLoss, TokenStats, TrainBatch

LOG_RATIOS = [0.1, -0.2, 0.3]


def measured(
    objective: Objective, log_ratios: list[float], advantages: list[float], logprobs: list[float] | None = None
) -> tuple[TokenLoss, list[float]]:
    """The losses and the gradient of one completion, whose sampler is its old policy."""
    x = torch.tensor([logprobs or [-1.0] * len(log_ratios)], dtype=torch.float64, requires_grad=True)
    old = x.detach() - torch.tensor([log_ratios], dtype=torch.float64)
    token = objective(TokenStats(x), batch_of(old, advantages))
    (gradient,) = torch.autograd.grad(token.loss.sum(), x)
    return token, gradient[0].tolist()


def batch_of(old: Tensor, advantages: list[float], sampler: Tensor | None = None) -> TrainBatch:
    given, sampler = torch.tensor([advantages], dtype=torch.float64), old if sampler is None else sampler
    return rows_of(torch.ones(old.shape).bool(), old_logprobs=old, rollout_logprobs=sampler, advantages=given)


def test_gspo_takes_the_geometric_mean() -> None:
    token, gradient = measured(Gspo(clip_high=0.2), LOG_RATIOS, [1.0] * 3)
    assert token.loss[0].tolist() == pytest.approx([-1.06893911] * 3)
    assert token.stats["policy/ratio"][0].tolist() == pytest.approx([1.06893911] * 3)
    assert gradient == pytest.approx([-1.06893911] * 3)  # three tokens carry the loss, a third of it is each one's


def test_gspo_clips_a_completion_by_the_papers_bounds() -> None:
    token, gradient = measured(Gspo(), [0.0009, 0.0006], [1.0, 1.0])  # mean log-ratio 7.5e-4
    assert token.loss[0].tolist() == pytest.approx([-1.0004] * 2, rel=1e-12)
    assert gradient == [0, 0]
    assert token.stats["policy/clip_high"].tolist() == [[1, 1]]
    token, gradient = measured(Gspo(), [0.0009, -0.0003], [1.0, 1.0])  # 3e-4, inside
    assert gradient == pytest.approx([-math.exp(3e-4)] * 2)
    token, gradient = measured(Gspo(), [-0.0009, -0.0003], [-1.0, -1.0])  # -6e-4
    assert token.loss[0].tolist() == pytest.approx([0.9997] * 2, rel=1e-12)
    assert gradient == [0, 0]
    assert token.stats["policy/clip_low"].tolist() == [[1, 1]]


def test_gmpo_clips_tokens_and_takes_the_geometric_mean() -> None:
    token, gradient = measured(Gmpo(clip_low=0.2, clip_high=0.2), LOG_RATIOS, [1.0] * 3)
    assert token.loss[0].tolist() == pytest.approx([-1.03389511] * 3)
    assert gradient == pytest.approx([-1.03389511, -1.03389511, 0])  # the clipped token alone has none
    assert token.stats["policy/clip_high"].tolist() == [[0, 0, 1]]
    token, gradient = measured(Gmpo(clip_low=0.1, clip_high=0.2), LOG_RATIOS, [-1.0] * 3)
    assert token.loss[0].tolist() == pytest.approx([math.exp(0.1)] * 3)  # (.1 - .1 + .3) / 3: a bad token may not rise
    assert gradient == pytest.approx([math.exp(0.1), 0, math.exp(0.1)])
    assert token.stats["policy/clip_low"].tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(("settings", "advantage", "ratio", "loss", "weight"), table("golden", "cispo"))
def test_cispo(settings: dict[str, float], advantage: float, ratio: float, loss: float, weight: float) -> None:
    token, gradient = measured(Cispo(**settings), [math.log(ratio)], [advantage])
    assert token.loss.item() == pytest.approx(loss)
    assert gradient == pytest.approx([-weight * advantage])
    assert token.stats["policy/weight_clip"].item() == (weight != ratio)
    assert token.stats["policy/ratio"].item() == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"), [(1, 1.0, -2), (1, 1.5, -2.48983732), (-1, 1.0, 1.9047619), (-1, 1.5, 2.39358548)]
)
def test_sapo(advantage: float, ratio: float, loss: float) -> None:
    token, gradient = measured(Sapo(), [math.log(ratio)], [advantage])
    assert token.loss.item() == pytest.approx(loss, abs=1e-8)
    tau = 1.0 if advantage > 0 else 1.05
    sigma = 1 / (1 + math.exp(-tau * (ratio - 1)))
    gate = 4 * sigma * (1 - sigma)
    assert gradient == pytest.approx([-advantage * gate * ratio])
    assert token.stats["policy/gate"].item() == pytest.approx(gate)


def test_sapos_gate_has_slope_1_at_ratio_1_and_is_finite_far_from_it() -> None:
    for tau in (0.5, 1.0, 4.0):
        ratio = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(soft_gate(ratio, torch.tensor(tau, dtype=torch.float64)), ratio)
        assert slope.item() == pytest.approx(1.0)
    token, gradient = measured(Sapo(), [30.0, -30.0], [-1.0, 1.0])
    assert token.loss[0].tolist() == pytest.approx([4 / 1.05, -4 / (1 + math.e)])
    assert gradient == pytest.approx([0, 0], abs=1e-8)


def dppo(settings: dict[str, Any], sampler: float, p: float, advantage: float) -> tuple[float, float]:
    """The weight of a token (its gradient over -Â), and whether it is counted as dropped."""
    token, gradient = measured(Dppo(**settings), [math.log(p / sampler)], [advantage], [math.log(p)])
    assert token.loss.item() == pytest.approx(gradient[0] * math.log(p))
    return -gradient[0] / advantage, token.stats["policy/dropped"].item()


@pytest.mark.parametrize(
    ("advantage", "p", "kept"), [(1, 0.5, True), (1, 0.65, False), (-1, 0.3, True), (-1, 0.15, False), (1, 0.1, True)]
)
def test_dppo_with_total_variation(advantage: float, p: float, kept: bool) -> None:
    weight, dropped = dppo({}, 0.4, p, advantage)
    assert weight == pytest.approx(p / 0.4 if kept else 0.0)
    assert dropped == (not kept)


@pytest.mark.parametrize(("delta", "advantage", "p", "kept"), table("golden", "dppo_with_the_binary_kl"))
def test_dppo_with_the_binary_kl(delta: float, advantage: float, p: float, kept: bool) -> None:
    weight, dropped = dppo({"divergence": "kl", "delta": delta}, 0.4, p, advantage)
    assert weight == pytest.approx(p / 0.4 if kept else 0.0)
    assert dropped == (not kept)


def test_binary_divergences_are_finite_in_float32_where_a_probability_is_1_or_0() -> None:
    p = torch.tensor([0.0, -1e-9, -60.0, 0.0, -200.0])
    sampler = torch.tensor([0.0, 0.0, -1.0, -1e-9, -200.0])
    for measure in (binary_tv, binary_kl):
        found = measure(p, sampler)
        assert found.isfinite().all()
        assert (found[[0, 1, 3, 4]].abs() < 1e-6).all()
        assert found[2] > 0.3


def test_dppos_weight_is_bounded() -> None:
    assert dppo({"max_ratio": 20.0}, 0.001, 0.1, 1.0)[0] == pytest.approx(20)
    assert dppo({"max_ratio": 200.0}, 0.001, 0.1, 1.0)[0] == pytest.approx(100)
    token, _ = measured(Dppo(), [math.log(100)], [1.0], [math.log(0.1)])
    assert token.stats["policy/weight_clip"].item() == 1


def test_dppo_measures_from_the_sampler_and_not_from_the_old_policy() -> None:
    assert corrects_for_sampler(Dppo())
    assert not corrects_for_sampler(Cispo())
    x = torch.tensor([[0.5]], dtype=torch.float64).log()
    batch = batch_of(torch.tensor([[0.1]], dtype=torch.float64).log(), [1.0], torch.log(torch.tensor([[0.4]]).double()))
    assert Dppo()(TokenStats(x), batch).stats["policy/ratio"].item() == pytest.approx(1.25)
    with pytest.raises(ValueError, match="rollout_logprobs"):
        Dppo()(TokenStats(x), batch.having(rollout_logprobs=None))
