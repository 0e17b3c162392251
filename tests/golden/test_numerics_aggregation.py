"""Aggregation as token weights against numbers worked out by hand: masks, splits, nothing at all."""

import math

import pytest
import torch
from torch import Tensor

from fakes.tables import table
from oncurve.batching import collate
from oncurve.config.sections import RunConfig
from oncurve.losses import (
    AGGREGATION_KINDS,
    CORRECTION_KINDS,
    KLPenalty,
    Masked,
    NoCorrection,
    SeqMeanTokenSumNorm,
    Truncated,
    off_policy,
    top_entropy,
)
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

LOSSES = torch.tensor([[1.0, 2, 3], [4, 0, 0]], dtype=torch.float64)
EXPECTED = table("golden", "aggregations")


def batch_of(*lengths: int, valid: tuple[bool, ...] | None = None) -> TrainBatch:
    completions = tuple(Completion((1,) * n, "", (0.0,) * n, "eos", i, 0) for i, n in enumerate(lengths))
    scores = tuple(Score(0.0, valid=ok) for ok in valid or (True,) * len(lengths))
    return collate([Group(Prompt(0, "", (1, 2)), completions, scores)])


@pytest.mark.parametrize(("name", "settings", "expected"), EXPECTED)
def test_two_completions(name: str, settings: dict[str, int], expected: float) -> None:
    weights = AGGREGATION_KINDS[name](**settings)(batch_of(3, 1))
    assert weights.dtype == torch.float64
    assert (weights * LOSSES).sum().item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("name", "settings", "expected"), EXPECTED)
def test_a_batch_that_trains_nothing_has_weight_zero(name: str, settings: dict[str, int], expected: float) -> None:
    weights: Tensor = AGGREGATION_KINDS[name](**settings)(batch_of(3, 1, valid=(False, False)))
    assert weights.tolist() == [[0] * 3] * 2


def test_the_kl_terms_aggregations_are_the_aggregations() -> None:
    for name in AGGREGATION_KINDS:
        assert RunConfig(kl=KLPenalty(aggregation=name)).apart_weights is not None
    same = SeqMeanTokenSumNorm(max_length=3)
    named = RunConfig(aggregation=same, kl=KLPenalty(aggregation="seq-mean-token-sum-norm"))
    assert named.apart_weights == same  # one constant for both
    with pytest.raises(ValueError, match="did you mean 'token-mean'"):
        KLPenalty(aggregation="token_mean")


def test_the_constant_length_must_be_known() -> None:
    with pytest.raises(ValueError, match="max_length"):
        SeqMeanTokenSumNorm()(batch_of(3, 1))


LOG_RATIO = torch.tensor([[0.1, 0.2, -0.1, 1.2]], dtype=torch.float64)
EVERY = torch.ones(1, 4, dtype=torch.bool)
TOKEN = [1.10517092, 1.22140276, 0.90483742, 3.32011692]
SEQUENCE, GEOMETRIC = [4.05519997] * 4, [1.41906755] * 4


@pytest.mark.parametrize(
    ("correction", "ratios", "used"),
    [
        (Truncated(), TOKEN, [*TOKEN[:3], 2.0]),
        (Truncated(threshold=1.0), TOKEN, [1.0, 1.0, TOKEN[2], 1.0]),
        (Truncated(level="sequence"), SEQUENCE, [2.0] * 4),
        (Truncated(level="sequence", threshold=5.0), SEQUENCE, SEQUENCE),
        (Truncated(level="geometric"), GEOMETRIC, GEOMETRIC),
        (Masked(), TOKEN, [*TOKEN[:3], 0.0]),
        (Masked(threshold_lower=1.0), TOKEN, [*TOKEN[:2], 0.0, 0.0]),
        (Masked(level="sequence"), SEQUENCE, [0.0] * 4),
        (Masked(level="geometric"), GEOMETRIC, GEOMETRIC),
        (NoCorrection(), [1.0] * 4, [1.0] * 4),
    ],
)
def test_weights(correction, ratios, used):
    found = correction(LOG_RATIO, EVERY)
    assert found.ratios[0].tolist() == pytest.approx(ratios, abs=5e-9)
    assert found.used[0].tolist() == pytest.approx(used, abs=5e-9)


def test_masked_weights_have_a_lower_bound():
    half = torch.full((1, 4), math.log(0.4), dtype=torch.float64)
    assert Masked()(half, EVERY).used[0].tolist() == [0.0] * 4
    assert Masked(threshold_lower=0.3)(half, EVERY).used[0].tolist() == pytest.approx([0.4] * 4)
    assert Truncated()(half, EVERY).used[0].tolist() == pytest.approx([0.4] * 4)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("kind", ["truncated", "masked"])
def test_equal_logprobs_have_the_weight_1_exactly(kind: str, level: str):
    found = CORRECTION_KINDS[kind](level=level)(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert found.used.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_weights_of_a_completion_that_the_sampler_all_but_ruled_out_are_finite(level: str):
    far = torch.full((1, 4), 300.0)
    assert Truncated(level=level, threshold=1e6)(far, EVERY).used.tolist() == [[1e6] * 4]
    assert Masked(level=level)(far, EVERY).used.tolist() == [[0.0] * 4]
    assert Truncated(level=level)(-far, EVERY).used.max() < 1e-8


@pytest.mark.parametrize(
    ("share", "kept"),
    [(0.5, [0, 1, 0, 1]), (0.25, [0, 1, 0, 0]), (0.01, [0, 1, 0, 0]), (0.75, [0, 1, 1, 1]), (1.0, [1, 1, 1, 1])],
)
def test_the_share_of_tokens_with_the_highest_entropy(share: float, kept: list[int]):
    assert top_entropy(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), EVERY, share).int()[0].tolist() == kept


def test_equal_entropies_are_all_kept_and_untrained_tokens_do_not_count():
    entropy, mask = torch.tensor([[2.0, 2.0, 1.0, math.nan]]), torch.tensor([[True, True, True, False]])
    assert top_entropy(entropy, mask, 1 / 3).int()[0].tolist() == [1, 1, 0, 0]
    assert not top_entropy(entropy, torch.zeros(1, 4, dtype=torch.bool), 0.5).any()


@pytest.mark.parametrize(
    ("advantage", "threshold", "dropped"), [(-1.0, 0.5, True), (-1.0, 0.7, False), (1.0, 0.5, False), (0.0, 0.5, False)]
)
def test_off_policy_completions(advantage: float, threshold: float, dropped: bool):
    sampler, now = torch.tensor([[-1.0, -1.0, 9.0]]), torch.tensor([[-1.5, -1.7, math.nan]])
    mask = torch.tensor([[True, True, False]])
    found = off_policy(now, sampler, torch.full((1, 3), advantage), mask, threshold)
    assert found.tolist() == [[dropped, dropped, False]]  # the mean is 0.6
