"""Log-probs, entropy, masked statistics and the tools around them against numbers worked out by hand."""

import math

import pytest
import torch

from oncurve import ops
from oracles.finite_differences import autograd_gradient, finite_difference_gradient

LOGITS = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-0.40760596, -1.40760596, -2.40760596]),
        (0.5, [-0.14293163, -2.14293163, -4.14293163]),
        (0.6, [-0.2025731, -1.86923977, -3.53590643]),
    ],
)
def test_token_logprobs_are_those_of_the_tempered_distribution(temperature: float, expected: list[float]) -> None:
    got = ops.token_logprobs(LOGITS.expand(3, 3), torch.arange(3), temperature)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_entropy() -> None:
    assert ops.entropy(LOGITS).item() == pytest.approx(0.83239558, abs=1e-8)
    assert ops.entropy(torch.zeros(2, 8)).tolist() == pytest.approx([math.log(8)] * 2)


def test_renormalising_after_top_p_would_bias_the_logprob() -> None:
    kept = ops.token_logprobs(LOGITS[:2], torch.tensor(0))
    assert kept.item() == pytest.approx(-0.31326169, abs=1e-8)
    assert (kept - ops.token_logprobs(LOGITS, torch.tensor(0))).item() == pytest.approx(0.09434428, abs=1e-8)


def test_a_token_ruled_out_adds_nothing_to_entropy_or_gradient() -> None:
    masked = torch.tensor([2.0, 1.0, -torch.inf], requires_grad=True)
    ops.entropy(masked).backward()
    plain = torch.tensor([2.0, 1.0], requires_grad=True)
    ops.entropy(plain).backward()
    torch.testing.assert_close(masked.grad, torch.cat([plain.grad, torch.zeros(1)]))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_agree_with_finite_differences(temperature: float) -> None:
    def logprob(z: torch.Tensor) -> torch.Tensor:
        return ops.token_logprobs(z, torch.tensor(1), temperature)

    for function in (logprob, lambda z: ops.entropy(z, temperature)):
        torch.testing.assert_close(
            autograd_gradient(function, LOGITS), finite_difference_gradient(function, LOGITS), atol=1e-8, rtol=1e-6
        )


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


@pytest.mark.usefixtures("shapes_unchecked")
def test_ids_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="need ids"):
        ops.token_logprobs(LOGITS.expand(4, 3), torch.arange(3))


def test_masked_mean_and_variance() -> None:
    x = torch.tensor([[1.0, 2, 3, 4, 5], [2, 3, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
    assert ops.masked_mean(x, mask, 1).tolist() == [2, 5]
    assert ops.masked_mean(x, mask).item() == 3.5
    assert ops.masked_var(x, mask, 1).tolist() == [1, 1]
    assert ops.masked_var(x[0], mask[0]).item() == 1
    assert ops.masked_var(x[0], mask[0], ddof=0).item() == pytest.approx(2 / 3)


def test_an_empty_mask_gives_zero_and_what_is_masked_never_matters() -> None:
    x = torch.tensor([torch.nan, 1.0, torch.inf], requires_grad=True)
    assert ops.masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0
    assert ops.masked_var(x, torch.zeros(3, dtype=torch.bool)).item() == 0
    middle = torch.tensor([False, True, False])
    (ops.masked_mean(x, middle) + ops.masked_var(x, middle)).backward()
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
