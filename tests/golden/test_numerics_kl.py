"""Every KL estimator: value and gradient at two points, and their expectations by enumerating three actions."""

import math

import pytest
import torch
from torch import Tensor

from fakes.tables import table
from oncurve import ops
from oncurve.kl import full_kl_from_logits, k3, kl_value

PI = (0.5, 0.3, 0.2)
REF = (0.4, 0.4, 0.2)
KL = math.fsum(p * math.log(p / q) for p, q in zip(PI, REF, strict=True))
# d/dz_k of Σ_v π_v log(π_v/q_v) for softmax logits z is π_k (log(π_k/q_k) - KL)
KL_GRADIENT = [p * (math.log(p / q) - KL) for p, q in zip(PI, REF, strict=True)]
SAMPLED = ["k1", "abs", "k2", "k3", "k1+", "abs+", "k3+", "ratio_k3"]


def scalar(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64)


def value_and_gradient(estimator: str, logprob: float, ref_logprob: float, old: float | None = None) -> list[float]:
    at = scalar(logprob).requires_grad_()
    value = kl_value(estimator, at, scalar(ref_logprob), None if old is None else scalar(old))
    (gradient,) = torch.autograd.grad(value.sum(), at)
    return [value.item(), gradient.item()]


@pytest.mark.parametrize(("estimator", "above", "below"), table("golden", "kl_value_and_gradient"))
def test_value_and_gradient(estimator: str, above: list[float], below: list[float]) -> None:
    assert value_and_gradient(estimator, -1.0, -1.5) == pytest.approx(above, abs=1e-8)
    assert value_and_gradient(estimator, -1.5, -1.0) == pytest.approx(below, abs=1e-8)


@pytest.mark.parametrize("distance", [-500.0, -28.0, -15.0, -0.01, 0.01, 15.0, 28.0])
def test_the_gradient_of_ratio_k3_is_the_ratio_times_the_distance_to_float32_precision(distance: float) -> None:
    at = torch.tensor([-1.0], requires_grad=True)
    kl_value("ratio_k3", at, torch.tensor([-1.0 - distance]), torch.tensor([-1.2])).sum().backward()
    assert at.grad.item() == pytest.approx(math.exp(0.2) * distance, rel=1e-4)


def test_far_from_the_reference_k3_goes_on_straight_with_its_sign_and_slope() -> None:
    """At d = -28 the pull is still towards the reference (negative), as strong as at d = -20, and all is finite."""
    edge, far = value_and_gradient("k3", -30.0, -10.0), value_and_gradient("k3", -38.0, -10.0)
    assert edge == pytest.approx([math.exp(20) - 21, 1 - math.exp(20)], rel=1e-12)
    assert far == pytest.approx([edge[0] + 8 * -edge[1], edge[1]], rel=1e-9)
    assert far[1] < 0
    assert value_and_gradient("k3", -1.0, -30.0) == pytest.approx([28.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("distance", [-500.0, -28.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 28.0, 500.0])
@pytest.mark.parametrize("estimator", SAMPLED)
def test_finite_in_float32_at_any_distance(estimator: str, distance: float) -> None:
    at = torch.tensor([distance - 600.0], requires_grad=True)
    value = kl_value(estimator, at, torch.tensor([-600.0]))
    value.sum().backward()
    assert value.isfinite().all()
    assert at.grad.isfinite().all()
    if estimator not in ("k1", "k1+"):
        assert value.item() >= 0
    if estimator != "k1" and distance:
        assert math.copysign(1, at.grad.item()) == math.copysign(1, distance)


def test_off_policy_the_ratio_keeps_the_gradient_exact() -> None:
    """Actions come from another policy: Σ_a π_old(a) ∇[ρ·k3] is still ∇KL, while Σ_a π_old(a) ∇k2 is not."""
    old = (0.2, 0.2, 0.6)
    gradients = {}
    for estimator in ("ratio_k3", "k2"):
        gradient = [0.0, 0.0, 0.0]
        for a, weight in enumerate(old):
            _, slope = value_and_gradient(estimator, math.log(PI[a]), math.log(REF[a]), math.log(weight))
            gradient = [g + weight * slope * ((k == a) - PI[k]) for k, g in enumerate(gradient)]
        gradients[estimator] = gradient
    assert gradients["ratio_k3"] == pytest.approx(KL_GRADIENT, abs=1e-12)
    assert gradients["k2"] != pytest.approx(KL_GRADIENT, abs=1e-3)


def test_full_is_the_kl_over_the_vocabulary_with_its_exact_gradient() -> None:
    assert pytest.approx(0.02526715, abs=1e-8) == KL
    logits = torch.tensor([math.log(p) for p in PI], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([math.log(q) + 3.0 for q in REF], dtype=torch.float64)
    exact = full_kl_from_logits(logits, ref)
    value = kl_value("full", torch.zeros(()), None, full_kl=exact)
    value.backward()
    assert value.item() == pytest.approx(KL, abs=1e-12)
    assert logits.grad.tolist() == pytest.approx([0.0989382, -0.09388477, -0.00505343], abs=1e-8)


def test_full_survives_tokens_that_are_ruled_out() -> None:
    logits = torch.tensor([1.0, 0.0, -torch.inf], requires_grad=True)
    full_kl_from_logits(logits, torch.tensor([0.0, 1.0, -torch.inf])).backward()
    assert logits.grad.isfinite().all()


def test_k3_is_exact_near_zero_in_float32() -> None:
    near = k3(torch.tensor([1e-4]), torch.tensor([0.0])).item()
    assert near == pytest.approx(5e-9, rel=0.25)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ValueError, match="full_kl"):
        kl_value("full", scalar(-1.0), scalar(-1.0))
    with pytest.raises(ValueError, match="ref_logprobs"):
        kl_value("k3", scalar(-1.0), None)
    with pytest.raises(KeyError, match="no KL estimator 'k4'"):
        kl_value("k4", scalar(-1.0), scalar(-1.0))


LOGITS = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(("temperature", "expected"), table("golden", "tempered_logprobs"))
def test_token_logprobs_are_those_of_the_tempered_distribution(temperature: float, expected: list[float]) -> None:
    got = ops.token_logprobs(LOGITS.expand(3, 3), torch.arange(3), temperature)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_entropy() -> None:
    assert ops.entropy(LOGITS).item() == pytest.approx(0.83239558, abs=1e-8)
    assert ops.entropy(torch.zeros(2, 8)).tolist() == pytest.approx([math.log(8)] * 2)


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_computed_in_float32_at_least(given: torch.dtype, computed: torch.dtype) -> None:
    logits = LOGITS.to(given)
    assert ops.token_logprobs(logits, torch.tensor(0), 0.7).dtype == computed
    assert ops.entropy(logits, 0.7).dtype == computed


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_without_a_density_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be > 0"):
        ops.entropy(LOGITS, temperature)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        full_kl_from_logits(torch.zeros(3), torch.zeros(3), temperature)


@pytest.mark.usefixtures("shapes_unchecked")
def test_ids_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="need ids"):
        ops.token_logprobs(LOGITS.expand(4, 3), torch.arange(3))


def test_masked_mean() -> None:
    x = torch.tensor([[1.0, 2, 3, 4, 5], [2, 3, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
    assert ops.masked_mean(x, mask, 1).tolist() == [2, 5]
    assert ops.masked_mean(x, mask).item() == 3.5


def test_an_empty_mask_gives_zero_and_what_is_masked_never_matters() -> None:
    x = torch.tensor([torch.nan, 1.0, torch.inf], requires_grad=True)
    assert ops.masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0
    ops.masked_mean(x, torch.tensor([False, True, False])).backward()
    assert x.grad.tolist() == [0, 1, 0]


def test_the_ratio_is_clamped_in_value_and_never_in_gradient() -> None:
    log_ratio = torch.tensor([-25.0, -1.0, 0.0, 1.0, 25.0], dtype=torch.float64, requires_grad=True)
    ratio = ops.clamped_ratio(log_ratio)
    expected = torch.tensor([math.exp(x) for x in (-20.0, -1.0, 0.0, 1.0, 20.0)], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected)
    ratio.sum().backward()
    torch.testing.assert_close(log_ratio.grad, expected)


def test_segments_may_have_any_sizes() -> None:
    values, ids = torch.tensor([1.0, 2.0, 6.0, 5.0]), torch.tensor([0, 2, 2, 2])
    assert ops.segment_sum(values, ids, 4).tolist() == [1, 0, 13, 0]
    assert ops.segment_count(values > 1.5, ids, 4).tolist() == [0, 0, 3, 0]
    assert ops.segment_mean(values, ids, 4, values < 6).tolist() == [1, 0, 3.5, 0]
    assert ops.segment_max(values, ids, 4).tolist() == [1, -torch.inf, 6, -torch.inf]
    assert ops.segment_min(values, ids, 4).tolist() == [1, torch.inf, 2, torch.inf]
