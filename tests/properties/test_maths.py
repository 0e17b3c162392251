"""What holds for any batch: pieces add up, order and masked places do not matter, advantages are relative."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from oncurve.advantages import GroupAdvantage, group_advantages
from oncurve.batching import collate, concat, micro_batches, minibatches, select_groups
from oncurve.kl import KL_KINDS
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.types import Completion, Group, Prompt, Score, TokenStats, TrainBatch

seeds = st.integers(0, 2**31)


def random_groups(rng: random.Random) -> list[Group]:
    """One to four groups of two to five completions of one to six tokens, some not valid; prompts of one to four."""
    groups = []
    for number in range(rng.randint(1, 4)):
        completions, scores = [], []
        for index in range(rng.randint(2, 5)):
            ids = tuple(rng.randint(0, 9) for _ in range(rng.randint(1, 6)))
            logprobs = tuple(-3 * rng.random() for _ in ids)
            ended = rng.choice(["eos", "stop", "length"])
            completions.append(Completion(ids, "", logprobs, ended, index, 0))
            valid = rng.random() < 0.85
            scores.append(Score(rng.choice([0.0, 1.0, 0.5]) if valid else 0.0, valid))
        prompt = Prompt(number, "", tuple(range(rng.randint(1, 4))))
        groups.append(Group(prompt, tuple(completions), tuple(scores)))
    return groups


def random_batch(seed: int, aggregation: str = "token-mean") -> TrainBatch:
    """A batch with every stream the losses read, `values` numbering its tokens so that pieces can be traced."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch = collate(random_groups(rng), mask_truncated=rng.random() < 0.5)
    shape = batch.completion_ids.shape
    noise = [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    weigh = AGGREGATION_KINDS[aggregation](**({"max_length": 7} if aggregation.endswith("norm") else {}))
    return batch.having(
        loss_mask=batch.loss_mask & (noise[0] < 0.9),
        old_logprobs=-3 * noise[1],
        ref_logprobs=-3 * noise[2],
        ref_hidden=torch.arange(int(batch.lengths.sum())).double()[:, None],
        values=torch.arange(shape.numel(), dtype=torch.float64).reshape(shape),
        advantages=GroupAdvantage()(batch),
    ).having(token_weights=weigh(batch.having(loss_mask=batch.loss_mask & (noise[0] < 0.9))))


def loss_and_gradient(
    pieces: list[TrainBatch], leaf: Tensor, loss_of: Callable[[TokenStats, TrainBatch], Tensor]
) -> tuple[Tensor, Tensor]:
    """Sum of the pieces' losses and its gradient; a token's log-prob is the entry of `leaf` that `values` names."""
    leaf = leaf.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for piece in pieces:
        logprobs = leaf[piece.values.long()]
        stats = TokenStats(logprobs, entropy=logprobs.square(), full_kl=logprobs.exp())
        loss = (loss_of(stats, piece) * piece.token_weights).sum()
        loss.backward()
        total += loss.detach()
    assert leaf.grad is not None
    return total, leaf.grad


@pytest.mark.parametrize("aggregation", AGGREGATION_KINDS)
@pytest.mark.parametrize("objective", OBJECTIVE_KINDS)
@given(seed=seeds, budget=st.integers(1, 40), estimator=st.sampled_from(sorted(KL_KINDS)), on_policy=st.booleans())
@settings(max_examples=6)  # of each of forty pairs
def test_pieces_and_order_change_neither_loss_nor_gradient(
    objective: str, aggregation: str, seed: int, budget: int, estimator: str, on_policy: bool
) -> None:
    batch = random_batch(seed, aggregation)
    batch = batch.having(old_logprobs=None) if on_policy else batch
    leaf = -3 * torch.rand(batch.loss_mask.numel(), generator=torch.Generator().manual_seed(~seed)).double()
    policy, regularizer = OBJECTIVE_KINDS[objective](), Regularizer(KLPenalty(estimator=estimator, coef=0.1), 0.01)

    def loss_of(stats: TokenStats, piece: TrainBatch) -> Tensor:
        return (policy(stats, piece) + regularizer(stats, piece)).loss

    whole = loss_and_gradient([batch], leaf, loss_of)
    order = list(range(len(batch.prompts)))
    random.Random(seed).shuffle(order)
    for pieces in (
        list(micro_batches(batch, budget)),
        minibatches(batch, 3, seed, 1, 0),
        [select_groups(batch, order)],
        [concat([select_groups(batch, [group]) for group in order])],
    ):
        torch.testing.assert_close(loss_and_gradient(pieces, leaf, loss_of), whole, atol=1e-12, rtol=1e-12)


@given(seed=seeds, budget=st.integers(1, 60))
@settings(max_examples=60)
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
@settings(max_examples=40)
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


rewards_of_a_group = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=12)


@given(
    rewards=rewards_of_a_group,
    factor=st.floats(0.01, 100),
    shift=st.floats(-100, 100),
    scale=st.sampled_from(["group", "batch"]),
)
@settings(max_examples=100)
def test_advantages_do_not_change_under_a_positive_affine_map(
    rewards: list[float], factor: float, shift: float, scale: str
) -> None:
    r = torch.tensor(rewards, dtype=torch.float64).round(decimals=2)
    valid, ids = torch.ones(len(r), dtype=torch.bool), torch.zeros(len(r), dtype=torch.int64)
    before = group_advantages(r, valid, ids, scale, 1, 0.0)
    after = group_advantages(factor * r + shift, valid, ids, scale, 1, 0.0)
    torch.testing.assert_close(after, before, atol=1e-8, rtol=1e-8)
