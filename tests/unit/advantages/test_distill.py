"""Distillation: its expected gradient is that of the reverse KL to the teacher, by enumeration."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from oncurve.advantages import GAEAdvantage, GroupAdvantage, distillation_advantages
from oncurve.advantages.distill import Distill
from oncurve.batching import collate
from oncurve.types import AdvantagesAndReturns, Completion, Group, Prompt, Score, TrainBatch


def batch_of(rewards: list[float], logprobs: list[list[float]], teacher: list[list[float]]) -> TrainBatch:
    """One group of completions with these log-probs of the sampling policy and of a teacher."""
    completions = tuple(
        Completion(tuple(range(1, 1 + len(row))), "", tuple(row), "eos", index, 0) for index, row in enumerate(logprobs)
    )
    batch = collate([Group(Prompt(0, "", (1,)), completions, tuple(map(Score, rewards)))])
    wide = torch.full(batch.completion_ids.shape, math.nan, dtype=torch.float64)
    for index, row in enumerate(teacher):
        wide[index, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return batch.having(teacher_logprobs=wide)


def test_by_hand() -> None:
    batch = batch_of([0.0, 0.0], [[-1.0, -2.0, -0.5], [-3.0]], [[-0.5, -2.5, -0.5], [-1.0]])
    assert Distill(teacher="t")(batch).tolist() == [[0.5, -0.5, 0.0], [2.0, 0.0, 0.0]]
    assert Distill(teacher="t", weight=0.5)(batch).tolist() == [[0.25, -0.25, 0.0], [1.0, 0.0, 0.0]]


def test_a_reward_by_weight_is_added() -> None:
    """r - mean r = ±0.5, and a half of the log-ratios 0.5, -0.5 | 2."""
    batch = batch_of([1.0, 0.0], [[-1.0, -2.0], [-3.0]], [[-0.5, -2.5], [-1.0]])
    mixed = Distill(teacher="t", weight=0.5, base=GroupAdvantage(scale="none"))
    assert mixed(batch).tolist() == [[0.75, 0.25], [0.5, 0.0]]
    assert mixed.needs == {"teacher", "siblings"}
    assert mixed.min_valid_completions == 2
    assert mixed.reads_rewards
    assert not Distill(teacher="t").reads_rewards


def test_the_returns_of_a_base_are_kept() -> None:
    batch = batch_of([1.0], [[-1.0, -2.0]], [[-0.5, -2.5]])
    batch = batch.having(values=torch.zeros(1, 2, dtype=torch.float64))
    alone = GAEAdvantage()(batch)
    mixed = Distill(teacher="t", base=GAEAdvantage())(batch)
    assert isinstance(mixed, AdvantagesAndReturns)
    assert torch.equal(mixed.returns, alone.returns)
    gap = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    assert torch.equal(mixed.advantages, gap + alone.advantages)


def test_tokens_that_are_not_trained_have_no_part_in_it() -> None:
    batch = batch_of([0.0], [[-1.0, math.nan]], [[-0.5, math.nan]])
    batch = batch.having(loss_mask=torch.tensor([[True, False]]))
    assert Distill(teacher="t")(batch).tolist() == [[0.5, 0.0]]


def test_one_softmax_has_the_gradient_of_the_reverse_kl() -> None:
    """π = [.5, .3, .2], π_T = [.4, .4, .2]: ∇_logits KL = [.0989382, -.09388477, -.00505343]."""
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    teacher = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    logprobs = logits.log_softmax(0)
    advantages = distillation_advantages(teacher[:, None], logprobs.detach()[:, None], torch.ones(3, 1).bool())[:, 0]
    loss = -(logprobs.detach().exp() * advantages * logprobs).sum()
    (found,) = torch.autograd.grad(loss, logits)
    assert found.tolist() == pytest.approx([0.0989382, -0.09388477, -0.00505343], abs=1e-8)
    kl = (logits.softmax(0) * (logits.log_softmax(0) - teacher)).sum()
    assert found.tolist() == pytest.approx(torch.autograd.grad(kl, logits)[0].tolist(), abs=1e-12)


def test_sequences_have_the_gradient_of_the_reverse_kl_at_each_position() -> None:
    """All completions of 3 of 3 tokens, each weighed by its probability; the tokens before a position are given."""
    torch.manual_seed(0)
    tables = torch.randn(1 + 3 + 9, 3, dtype=torch.float64)
    teachers = tables + 0.7 * torch.randn_like(tables)
    tables.requires_grad_()

    def context(before: tuple[int, ...]) -> int:
        return sum(3**place for place in range(len(before))) + sum(
            3**place * token for place, token in enumerate(before)
        )

    def along(table: Tensor, ids: tuple[int, ...]) -> Tensor:
        return torch.stack([table[context(ids[:t])].log_softmax(0)[ids[t]] for t in range(3)])

    loss = torch.zeros((), dtype=torch.float64)
    for ids in itertools.product(range(3), repeat=3):
        logprobs = along(tables, ids)
        batch = batch_of([0.0], [logprobs.tolist()], [along(teachers, ids).tolist()])
        advantages = Distill(teacher="t")(batch)
        assert isinstance(advantages, Tensor)
        loss = loss - logprobs.sum().exp().detach() * (advantages[0] * logprobs).sum()
    kl = torch.zeros((), dtype=torch.float64)
    for length in range(3):
        for before in itertools.product(range(3), repeat=length):
            reached = torch.ones((), dtype=torch.float64)
            for t in range(length):
                reached = reached * tables[context(before[:t])].softmax(0)[before[t]].detach()
            here = tables[context(before)].log_softmax(0)
            kl = kl + reached * (here.exp() * (here - teachers[context(before)].log_softmax(0))).sum()
    wanted, found = (torch.autograd.grad(of, tables)[0] for of in (kl, loss))
    assert torch.allclose(wanted, found, rtol=0, atol=1e-12)
    assert float(wanted.abs().max()) > 0.01


def test_a_batch_without_a_teacher_is_refused() -> None:
    batch = batch_of([0.0], [[-1.0]], [[-0.5]])
    with pytest.raises(ValueError, match="teacher_logprobs"):
        Distill(teacher="t")(batch.having(teacher_logprobs=None))
