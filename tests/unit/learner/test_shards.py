"""The gradient of an update in shards: the plain tree's bits, and the whole batch's value."""

import pytest
import torch

from fakes.learning import finished, gradient, make_learner, relative_error
from fakes.tiny_policy import random_groups
from oncurve.batching import shards
from oncurve.cluster.ranks import GradientShards
from oncurve.learner import LocalLearner
from oncurve.types import TrainBatch
from oracles.plain_shards import gradient_in_shards

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def learner_of(dtype: torch.dtype, **settings: object) -> LocalLearner:
    given = torch.float64 if dtype == torch.float64 else torch.float32
    return make_learner(dtype=given, compute_dtype=dtype, **settings)


def batch_of(learner: LocalLearner, count: int = 5, seed: int = 0) -> TrainBatch:
    return finished(learner, random_groups(count=count, size=4, seed=seed))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 64])
def test_shards_are_runs_of_rows_of_about_the_same_cost(count: int) -> None:
    batch = batch_of(learner_of(torch.float64))
    pieces = shards(batch, count)
    assert len(pieces) == count
    there = [piece for piece in pieces if piece is not None]
    assert torch.equal(torch.cat([piece.lengths for piece in there]), batch.lengths)
    ids = [
        row[:length].tolist()
        for piece in there
        for row, length in zip(piece.completion_ids, piece.lengths, strict=True)
    ]
    assert ids == [row[:length].tolist() for row, length in zip(batch.completion_ids, batch.lengths, strict=True)]
    sizes = torch.bincount(batch.group_ids)
    costs = [
        length + len(batch.prompts[group]) / int(sizes[group])
        for length, group in zip(batch.lengths.tolist(), batch.group_ids.tolist(), strict=True)
    ]
    begin = 0
    for piece in pieces:
        rows = 0 if piece is None else piece.size
        mine = costs[begin : begin + rows]
        assert sum(mine) <= sum(costs) / count + (mine[0] / 2 + mine[-1] / 2 if mine else 0) + 1e-9
        begin += rows


def test_a_batch_is_not_cut_into_no_shards() -> None:
    with pytest.raises(ValueError, match="count must be >= 1, got 0"):
        shards(batch_of(learner_of(torch.float64)), 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 8, 32])  # of 20 rows: the last has shards without rows
def test_the_gradient_has_the_bits_of_the_plain_tree(count: int, dtype: torch.dtype) -> None:
    learner = learner_of(dtype, tokens_per_micro_batch=12)
    cut = GradientShards.of(learner, batch_of(learner), count)
    right = gradient_in_shards(learner, cut.pieces)
    cut.summed()
    for name, part in learner.optimizer.gradients().items():
        assert torch.equal(part, right[name]), name


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_it_is_the_gradient_of_the_whole_batch(dtype: torch.dtype, allowed: float) -> None:
    learner = learner_of(dtype, entropy_coef=0.05)
    batch = batch_of(learner)
    right = gradient(learner, batch)
    GradientShards.of(learner, batch, 8).summed()
    found = torch.cat([part.flatten().double() for part in learner.optimizer.gradients().values()])
    assert relative_error(found, right) <= allowed


def test_loss_and_statistics_are_those_of_the_whole_batch() -> None:
    learner = learner_of(torch.float64, kl_coef=0.0)
    groups = random_groups(count=3, size=4, rewards=[[1.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0]])
    batch = finished(learner, groups)  # the second group has no gradient
    whole = learner.accumulate(batch)
    cut = GradientShards.of(learner, batch, 4)
    shared = cut.joined(batch, cut.summed())
    assert float(shared.loss) == pytest.approx(float(whole.loss), rel=1e-12)
    right = whole.metrics.result()
    assert shared.metrics.result() == {key: pytest.approx(value, rel=1e-12) for key, value in right.items()}


def test_a_batch_without_a_gradient_is_still_an_update() -> None:
    learner = learner_of(torch.float64, kl_coef=0.0)
    batch = finished(learner, random_groups(count=2, size=4, rewards=[[1.0] * 4, [0.0] * 4]))
    cut = GradientShards.of(learner, batch, 4)
    assert cut.pieces == [None] * 4
    result = learner.apply(cut.joined(batch, cut.summed()))
    assert learner.version == 1
    assert result.metrics.result()["optim/grad_norm"] == 0.0


@pytest.mark.parametrize("settings", [{}, {"masters": "split", "moments": "bfloat16"}], ids=["whole", "lean"])
def test_a_learner_that_takes_over_anothers_state_goes_on_to_the_same_bits(settings: dict[str, str]) -> None:
    first, second = (learner_of(torch.bfloat16, learning_rate=0.01, **settings) for _ in range(2))
    for seed in range(3):
        first.update(batch_of(first, seed=seed))
        first.move_reference(0.5)
    second.update(batch_of(second, seed=9))  # elsewhere
    record, tensors = first.state()
    second.take_over(record, {name: tensor.clone() for name, tensor in tensors.items()})
    for seed in (4, 5):
        results = [learner.update(batch_of(learner, seed=seed)) for learner in (first, second)]
        assert results[0].metrics.result() == results[1].metrics.result()
    assert first.changes == second.changes
    for name, tensor in first.state()[1].items():
        assert torch.equal(tensor, second.state()[1][name]), name
