"""Advantages against formulas written out: groups laid out in any way, GAE, steps, distillation by enumeration."""

import itertools
import math
import random
import statistics

import pytest
import torch
from torch import Tensor

from fakes.tables import table
from oncurve.advantages import GAEAdvantage, GroupAdvantage, gae, group_advantages, process_advantages
from oncurve.advantages.distill import Distill
from oncurve.advantages.group import Scale
from oncurve.batching import collate, token_rewards
from oncurve.types import AdvantagesAndReturns, Completion, Group, Prompt, Score, TrainBatch
from oracles.plain_process import plain_process_advantages

LAYOUTS = table("advantages", "layouts")


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("constant", [False, True])
def test_the_formula(scale: Scale, ddof: int, eps: float, layout: str, constant: bool) -> None:
    ids = LAYOUTS[layout]
    drawn = [0.1, 0.9, 0.4, 1.0, 0.3, 0.0, 2.0, 0.8]
    rewards = [0.7 if constant and i == ids[0] else reward for i, reward in zip(ids, drawn, strict=True)]
    deviation = statistics.stdev if ddof else statistics.pstdev
    expected = []
    for reward, own in zip(rewards, ids, strict=True):
        siblings = [other for other, i in zip(rewards, ids, strict=True) if i == own]
        divisor = {"group": deviation(siblings) + eps, "batch": deviation(rewards) + eps, "none": 1.0}[scale]
        expected.append(0.0 if len(set(siblings)) == 1 else (reward - statistics.fmean(siblings)) / divisor)
    found = group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.ones(8, dtype=torch.bool), torch.tensor(ids), scale, ddof, eps
    )
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-13, rtol=1e-12)
    if constant:
        assert [value for value, i in zip(found.tolist(), ids, strict=True) if i == ids[0]] == [0.0] * ids.count(ids[0])


def test_what_it_is_given_is_not_changed() -> None:
    ids = torch.arange(4).repeat_interleave(3)
    valid = torch.ones(12, dtype=torch.bool)
    rewards = torch.arange(12, dtype=torch.float64)
    group_advantages(rewards, valid, ids)
    assert rewards.tolist() == list(range(12))
    every_other = torch.arange(24, dtype=torch.float64)[::2]
    torch.testing.assert_close(
        group_advantages(every_other, valid, ids), group_advantages(every_other.clone(), valid, ids)
    )


def test_step_rewards_stand_at_their_ends_and_take_the_place_of_the_whole():
    completion = Completion((1, 2, 3, 4), "", (-1.0,) * 4, "eos", 0, 0)
    scores = (Score(9.0, step_ends=(1, 1, 3), step_rewards=(0.5, 0.25, -1.0)), Score(2.0), Score(0.0, valid=False))
    batch = collate([Group(Prompt(0, "", (1,)), (completion,) * 3, scores)])
    assert token_rewards(batch).tolist() == [[0, 0.75, 0, -1.0], [0, 0, 0, 2.0], [0, 0, 0, 0]]


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_that_differ_and_missing_values_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        gae(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool))
    batch = collate([Group(Prompt(0, "", (1,)), (Completion((1,), "", (0.0,), "eos", 0, 0),), (Score(1.0),))])
    with pytest.raises(ValueError, match="critic"):
        GAEAdvantage()(batch)
    with pytest.raises(ValueError, match="after the last"):
        GAEAdvantage(bootstrap=True)(batch.having(values=torch.zeros(1, 1)))


def random_groups(rng: random.Random) -> list[list[tuple[int, list[tuple[int, float]]]]]:
    def completion() -> tuple[int, list[tuple[int, float]]]:
        length = rng.randint(1, 9)
        ends = sorted(rng.randrange(length) for _ in range(rng.randint(0, 4)))  # two may share a token
        return length, [(end, rng.choice([0.0, 0.25, 1.0, rng.gauss(0, 3)])) for end in ends]

    return [[completion() for _ in range(rng.randint(2, 5))] for _ in range(rng.randint(1, 4))]


def tensors(groups, spoiled=None):
    rows = [row for group in groups for row in group]
    most = max(1, max(len(steps) for _, steps in rows))
    rewards = torch.full((len(rows), most), 99.0, dtype=torch.float64)
    ends = torch.full((len(rows), most), -7)
    for index, (_, steps) in enumerate(rows):
        for column, (end, reward) in enumerate(steps):
            rewards[index, column], ends[index, column] = reward, end
    counts = torch.tensor([len(steps) for _, steps in rows])
    valid = torch.tensor([index != spoiled for index in range(len(rows))])
    group_ids = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    return rewards, ends, counts, valid, group_ids, max(length for length, _ in rows)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_loops_give(seed, ddof):
    groups = random_groups(random.Random(seed))
    got = process_advantages(*tensors(groups), ddof=ddof)
    wanted = [row for group in plain_process_advantages(groups, ddof) for row in group]
    for row, numbers in zip(got, wanted, strict=True):
        assert row[: len(numbers)].tolist() == pytest.approx(numbers, abs=1e-10)
        assert row[len(numbers) :].tolist() == [0.0] * (len(row) - len(numbers))


@pytest.mark.parametrize("seed", range(20))
def test_a_completion_that_is_not_valid_is_as_if_it_were_not_there(seed):
    groups = random_groups(random.Random(seed))
    got = process_advantages(*tensors(groups, spoiled=1))
    groups[0][1] = (groups[0][1][0], [])
    assert torch.equal(got, process_advantages(*tensors(groups)))
    assert got[1].abs().max() == 0


@pytest.mark.usefixtures("shapes_unchecked")
def test_shapes_that_do_not_fit_and_steps_outside_a_row_are_refused():
    rewards, ends, counts, valid, group_ids, length = tensors([[(3, [(2, 1.0)]), (3, [(1, 0.0)])]])
    with pytest.raises(ValueError, match="do not fit"):
        process_advantages(rewards, ends[:1], counts, valid, group_ids, length)
    with pytest.raises(ValueError, match="steps end at tokens 0 to 1 of a row, got"):
        process_advantages(rewards, ends, counts, valid, group_ids, 2)


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
