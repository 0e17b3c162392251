"""Objectives against numbers worked out by hand, gradients included; nothing leaks from masked places."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fakes.batches import rows_of
from fakes.tables import table
from oncurve.losses import OBJECTIVE_KINDS, Clipped, Gmpo, KLPenalty, Objective, Regularizer, SequenceProduct
from oncurve.metrics import Metrics
from oncurve.types import TokenLoss, TokenStats, TrainBatch


def batch_of(
    old: Tensor | None,
    advantages: Tensor | None,
    mask: Tensor,
    ref: Tensor | None = None,
    sampler: Tensor | None = None,
) -> TrainBatch:
    sampler = old if sampler is None else sampler
    return rows_of(mask, old_logprobs=old, rollout_logprobs=sampler, ref_logprobs=ref, advantages=advantages)


def one_token(objective: Objective, advantage: float, ratio: float) -> tuple[float, float]:
    """The loss of one token, and ∂loss/∂log π."""
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    at = (old + math.log(ratio)).requires_grad_()
    batch = batch_of(old, torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool))
    loss = objective(TokenStats(at), batch).loss
    (gradient,) = torch.autograd.grad(loss.sum(), at)
    return loss.item(), gradient.item()


@pytest.mark.parametrize("kind", [Clipped, SequenceProduct])
@pytest.mark.parametrize(("advantage", "ratio", "settings", "loss", "gradient"), table("golden", "clipped_surrogate"))
def test_clipped_surrogate(
    kind: type[Clipped | SequenceProduct],
    advantage: float,
    ratio: float,
    settings: dict[str, float],
    loss: float,
    gradient: float,
) -> None:
    got = one_token(kind(**settings), advantage, ratio)
    assert got == pytest.approx((loss, gradient), abs=1e-12)


@pytest.mark.parametrize("kind", [Clipped, SequenceProduct, Gmpo])
def test_at_ratio_one_the_gradient_is_whole_however_narrow_the_clip(kind: type[Clipped | Gmpo]) -> None:
    assert one_token(kind(clip_low=0.0, clip_high=0.0), 1.0, 1.0) == (-1, -1)
    assert one_token(kind(clip_low=0.0, clip_high=0.0), -1.0, 1.0) == (1, 1)


@pytest.mark.parametrize("kind", [Clipped, SequenceProduct])
def test_a_ratio_that_ran_away_is_finite_and_still_pulled_back(kind: type[Clipped | SequenceProduct]) -> None:
    """log ρ = 30 under a negative advantage: the value is clamped at e²⁰, the gradient is not taken away."""
    loss, gradient = one_token(kind(), -1.0, math.exp(30))
    assert loss == pytest.approx(math.exp(20))
    assert gradient == pytest.approx(math.exp(20))
    assert one_token(kind(), 1.0, math.exp(30)) == pytest.approx((-1.2, 0))
    assert one_token(kind(), 1.0, math.exp(-30)) == pytest.approx((-math.exp(-20), -math.exp(-20)), rel=1e-9)


@pytest.mark.parametrize("kind", OBJECTIVE_KINDS)
def test_without_old_logprobs_the_ratio_is_one_and_its_gradient_alive(kind: str) -> None:
    logprobs = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = batch_of(None, torch.tensor([[1.0, 1.0]]), mask, sampler=logprobs.detach())
    token = OBJECTIVE_KINDS[kind]()(TokenStats(logprobs), batch)
    token.loss.sum().backward()
    assert logprobs.grad.tolist() == [[-1, -1]]
    if "policy/ratio" in token.stats:
        assert token.stats["policy/ratio"].tolist() == [[1, 1]]


def test_statistics_are_declared_detached_and_right() -> None:
    ratios = torch.tensor([[1.5, 0.5, 1.0], [1.5, 0.5, 9.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    logprobs = ratios.log().requires_grad_()
    batch = batch_of(torch.zeros(2, 3), advantages, mask, torch.zeros(2, 3))
    stats = TokenStats(logprobs, entropy=torch.ones(2, 3))
    token: TokenLoss = Clipped(dual_clip=3.0)(stats, batch) + Regularizer(KLPenalty(), 0.1)(stats, batch)
    metrics = Metrics()
    for key, values in token.stats.items():
        assert not values.requires_grad
        metrics.add(key, values, mask)
    result = metrics.result()
    assert result["policy/clip_high"] == pytest.approx(1 / 6)
    assert result["policy/clip_low"] == pytest.approx(1 / 6)
    assert result["policy/clip_dual"] == pytest.approx(1 / 6)
    assert result["policy/ratio"] == pytest.approx(14 / 6)
    assert result["policy/ratio_max"] == pytest.approx(9)
    assert result["policy/entropy"] == 1
    expected = sum(r - 1 - math.log(r) for r in ratios.flatten().tolist()) / 6
    assert result["policy/kl_old"] == pytest.approx(expected)
    assert result["policy/kl"] == pytest.approx(sum(1 / r + math.log(r) - 1 for r in ratios.flatten().tolist()) / 6)
    assert result["policy/objective_loss"] == pytest.approx((-1.2 - 0.5 - 1 + 1.5 + 0.8 + 3) / 6)


def test_the_regularizer_is_coef_times_kl_less_the_entropy_bonus() -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    batch = batch_of(None, None, mask, torch.tensor([[-1.5]], dtype=torch.float64))
    stats = TokenStats(torch.tensor([[-1.0]], dtype=torch.float64), entropy=torch.tensor([[2.0]], dtype=torch.float64))
    token = Regularizer(KLPenalty(coef=0.1), 0.01)(stats, batch)
    assert token.loss.item() == pytest.approx(0.1 * 0.10653066 - 0.02)
    off = Regularizer(KLPenalty(coef=0.0))(stats, batch)
    assert off.loss.item() == 0
    assert off.stats["policy/kl"].item() == pytest.approx(0.10653066)


def test_without_coefficients_neither_reference_nor_streams_are_needed() -> None:
    off = Regularizer(KLPenalty(estimator="full", coef=0.0))
    assert off.needs == frozenset()
    assert not off.kl.needs_reference
    batch = batch_of(None, None, torch.ones(1, 1, dtype=torch.bool))
    assert off(TokenStats(torch.zeros(1, 1)), batch).stats == {}
    assert Regularizer(KLPenalty(estimator="full"), 0.1).needs == {"full_kl", "entropy"}
    assert KLPenalty().needs_reference


def test_what_is_missing_is_said() -> None:
    batch = batch_of(None, None, torch.ones(1, 1, dtype=torch.bool))
    stats = TokenStats(torch.zeros(1, 1))
    for kind in OBJECTIVE_KINDS.values():
        with pytest.raises(ValueError, match="advantages"):
            kind()(stats, batch)
    with pytest.raises(ValueError, match="ref_logprobs"):
        Regularizer(KLPenalty())(stats, batch)
    with pytest.raises(ValueError, match="full_kl"):
        Regularizer(KLPenalty(estimator="full"))(stats, batch)
    with pytest.raises(ValueError, match="entropy"):
        Regularizer(KLPenalty(coef=0.0), 0.1)(stats, batch)


@pytest.mark.parametrize("settings", [{"dual_clip": 1.1}, {"delta": 1.2}, {"clip_low": -0.1}, {"clip_hihg": 0.2}])
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Clipped(**settings)
