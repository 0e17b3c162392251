"""What holds for any batch that is cut: nothing is lost, nothing is there twice, and the pieces are as they should."""

import random

import torch
from hypothesis import given, settings, strategies as st

from fakes.tiny_policy import random_groups
from oncurve.batching import collate, micro_batches, minibatches
from oncurve.types import TrainBatch

seeds = st.integers(0, 2**31)


def random_batch(seed: int) -> TrainBatch:
    """A batch whose `values` and `ref_hidden` number its tokens, so that pieces can be traced."""
    chance = random.Random(seed)
    batch = collate(random_groups(count=chance.randint(1, 4), size=chance.randint(2, 5), seed=seed))
    shape = batch.completion_ids.shape
    return batch.having(
        ref_hidden=torch.arange(int(batch.lengths.sum())).double()[:, None],
        values=torch.arange(shape.numel(), dtype=torch.float64).reshape(shape),
    )


@given(seed=seeds, budget=st.integers(1, 60))
@settings(max_examples=30)
def test_micro_batches_hold_every_row_once_in_order_and_keep_to_the_budget(seed: int, budget: int) -> None:
    batch = random_batch(seed)
    pieces = list(micro_batches(batch, budget))
    assert sum(piece.size for piece in pieces) == batch.size
    assert torch.cat([piece.rewards for piece in pieces]).tolist() == batch.rewards.tolist()
    assert torch.cat([p.ref_hidden for p in pieces if p.ref_hidden is not None])[:, 0].tolist() == list(
        range(int(batch.lengths.sum()))
    )
    row = 0
    for piece in pieces:
        cost = int(piece.lengths.sum()) + sum(len(prompt) for prompt in piece.prompts)
        assert cost <= budget or piece.size == 1
        assert piece.completion_ids.shape[1] == int(piece.lengths.max())
        for local in range(piece.size):
            expected = batch.prompts[int(batch.group_ids[row])]
            assert piece.prompts[int(piece.group_ids[local])].tolist() == expected.tolist()
            row += 1


@given(seed=seeds, count=st.integers(1, 6))
@settings(max_examples=20)
def test_minibatches_hold_every_group_once_and_are_balanced(seed: int, count: int) -> None:
    batch = random_batch(seed)
    pieces = minibatches(batch, count, seed, step=3, pass_index=1)
    assert len(pieces) == min(count, len(batch.prompts))
    sizes = [len(piece.prompts) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    tokens = torch.cat([p.values[p.existing()] for p in pieces if p.values is not None])
    assert sorted(tokens.tolist()) == batch.values[batch.existing()].tolist()
    again = minibatches(batch, count, seed, step=3, pass_index=1)
    assert [p.rewards.tolist() for p in again] == [p.rewards.tolist() for p in pieces]
