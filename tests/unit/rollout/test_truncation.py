"""Truncated sampling: kept sets by their definition, and a policy that is trained renormalised over them."""

import math
import random

import pytest
import torch
from torch import Tensor

from fakes.architectures import VOCABULARY, fast_model
from fakes.learning import make_learner
from fakes.tables import table
from fakes.tiny_policy import TinyLM
from fakes.tolerance import about
from oncurve.batching import collate, micro_batches
from oncurve.models import GenericModel, LocalWeights, token_stats
from oncurve.models.generic import plain_logits
from oncurve.ops import token_logprobs
from oncurve.randomness import uniform
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.rollout.sampler import TruncatedSampler
from oncurve.types import Completion, Group, Prompt, Score
from oracles.plain_sampler import distribution
from oracles.plain_truncation import kept_set, masked, recorded, sets_of

SETTINGS = table("truncation", "settings")
GOLDEN = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)


def drawn(sampler: TruncatedSampler, logits: Tensor, uniforms: list[float]) -> tuple[Tensor, ...]:
    return sampler(logits, torch.tensor(uniforms, dtype=torch.float64))


def test_the_golden_numbers() -> None:
    ids, logprobs, sizes, kept = drawn(TruncatedSampler(1.0, top_k=2), GOLDEN.expand(2, 4), [0.1, 0.9])
    assert (ids.tolist(), sizes.tolist(), kept.tolist()) == ([0, 1], [2, 2], [0, 1, 0, 1])
    assert logprobs.tolist() == about([-0.3132617, -1.3132617])
    head = GOLDEN.clone().requires_grad_()
    logprob = token_logprobs(masked(head, [[0, 1]]), torch.tensor([0]))
    (gradient,) = torch.autograd.grad(logprob.sum(), head)
    assert gradient[0].tolist() == about([0.2689414, -0.2689414, 0, 0])
    moved = token_logprobs(masked(torch.tensor([[1.0, 1.0, 5.0, 0.0]]).double(), [[0, 1]]), torch.tensor([0]))
    assert moved.item() == about(-0.6931472)
    assert math.exp(moved.item() - logprobs[0].item()) == about(0.6839397)


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 300, 1200])
def test_tokens_and_sets_are_those_of_the_plain_definition(vocabulary: int) -> None:
    chance, generator = random.Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    for number in range(40 if vocabulary < 300 else 6):
        logits = 3 * torch.randn(4, vocabulary, generator=generator, dtype=torch.float64)
        logits = logits.round(decimals=number % 3)  # with ties
        temperature = chance.choice([0.5, 1.0, 3.0])
        cut = chance.choice([0, 1, 3, vocabulary, 2 * vocabulary]), chance.choice([1.0, 0.2, 0.77, 0.999])
        least = chance.choice([0.0, 0.01, 0.3])
        u = uniform(5, number, torch.arange(4), torch.zeros(4, dtype=torch.long), 0)
        ids, logprobs, sizes, kept = TruncatedSampler(temperature, *cut, least)(logits, u)
        found = sets_of(sizes.tolist(), kept.numpy().tobytes(), vocabulary)
        for row, one in enumerate(logits.tolist()):
            wanted = kept_set(one, temperature, *cut, least)
            assert found[row] == wanted
            inside = distribution([one[token] for token in wanted], temperature)
            place = next(at for at in range(len(wanted)) if math.fsum(inside[: at + 1]) > u[row].item())
            assert ids[row].item() == wanted[place]
            assert logprobs[row].item() == about(math.log(inside[place]))


def test_a_large_set_is_stored_by_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))
    rows = [TruncatedSampler(1.0, top_p=0.97), TruncatedSampler(1.0, top_k=30)]
    before = [drawn(sampler, logits, [0.1, 0.3, 0.5, 0.7, 0.9]) for sampler in rows]
    monkeypatch.setattr("oncurve.rollout.sampler.LARGEST", 20)
    after = [drawn(sampler, logits, [0.1, 0.3, 0.5, 0.7, 0.9]) for sampler in rows]
    assert max(after[0][2].tolist()) < 0 < min(after[1][2].tolist())  # less than half is stored as it is
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[0], other[0])
        left, right = (sets_of(sizes.tolist(), ids.numpy().tobytes(), 400) for *_, sizes, ids in (one, other))
        assert left == right


def test_a_row_without_numbers_has_no_log_probability() -> None:
    logits = torch.tensor([[1.0, math.nan, 0.0], [0.0, 1.0, 2.0]])
    for sampler in (TruncatedSampler(1.0, top_p=0.5), TruncatedSampler(1.0, top_k=2), TruncatedSampler(1.0, min_p=0.5)):
        assert drawn(sampler, logits, [0.5, 0.5])[1].isnan().tolist() == [True, False]


def sampled(model, most: int = 9, **settings: float) -> list[Group]:
    sampling = Sampling(group_size=4, max_new_tokens=most, max_concurrent=8, **settings)
    engine = InProcessEngine(sampling, None, (3,), seed=1)
    engine.follow(LocalWeights(model, 0))
    prompts = [Prompt(number, "", (5, 7 + number, 2)[: 1 + number]) for number in range(3)]
    return [
        Group(group.prompt, group.completions, tuple(Score(float(index)) for index in range(4)))
        for group in engine.generate(prompts, draw=0)
    ]


@pytest.mark.parametrize("cut", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "make", [fast_model, lambda: GenericModel(TinyLM(VOCABULARY).double())], ids=["fused head", "chunks"]
)
def test_the_ratio_of_learner_and_sampler_is_1(make, cut: dict[str, float]) -> None:
    model = make()
    batch = collate(sampled(model, **cut))
    for micro in micro_batches(batch, 40):
        stats = token_stats(model, micro, temperature=cut.get("temperature", 1.0))
        gap = (stats.logprobs - micro.rollout_logprobs)[micro.loss_mask].exp() - 1
        assert gap.abs().max() < 1e-7
    whole = token_stats(model, batch.having(kept_sizes=None, kept_ids=None), temperature=cut.get("temperature", 1.0))
    assert (whole.logprobs < batch.rollout_logprobs - 1e-7)[batch.loss_mask].any()


def test_rows_that_come_and_go_have_their_own_sets() -> None:
    model, cut = fast_model(), {"top_p": 0.8, "temperature": 1.3}
    for group in sampled(model, most=30, **cut):
        for each in group.completions:
            sets = sets_of(each.kept_sizes, each.kept_ids, VOCABULARY)
            row = torch.tensor([group.prompt.ids + each.ids])
            logits = plain_logits(model.module, row)[0, len(group.prompt.ids) - 1 : -1].tolist()
            assert sets == [kept_set(one, 1.3, 0, 0.8, 0.0) for one in logits]


def test_the_gradient_is_that_of_the_expected_reward_by_enumeration() -> None:
    """Two tokens, each from the three likeliest: all nine completions with their probabilities as weights."""
    model = GenericModel(TinyLM().double())
    prompt, rewards = (4, 2), {}

    def sets_after(*ids: int) -> list[int]:
        logits = plain_logits(model.module, torch.tensor([prompt + ids]))[0, -1]
        return kept_set(logits.tolist(), 0.7, 3, 1.0, 0.0)

    paths = [(first, second) for first in sets_after() for second in sets_after(first)]
    rewards = {path: math.sin(3 * path[0] + path[1]) for path in paths}
    sets = {path: [sets_after(), sets_after(path[0])] for path in paths}
    expected, weights = torch.zeros((), dtype=torch.float64), []
    for path in paths:
        logits = plain_logits(model.module, torch.tensor([prompt + path]))[0, 1:3]
        logprob = token_logprobs(masked(logits, sets[path]), torch.tensor(path), 0.7).sum()
        weights.append(logprob.detach().exp())
        expected = expected + logprob.exp() * rewards[path]
    right = torch.cat([part.flatten() for part in torch.autograd.grad(-expected, list(model.module.parameters()))])
    assert sum(weights).item() == about(1.0)
    completions = []
    for number, path in enumerate(paths):
        sizes, ids = recorded(sets[path], (number % 2 == 0, False), 11)
        completions.append(Completion(path, "", (0.0, 0.0), "eos", number, 0, kept_sizes=sizes, kept_ids=ids))
    batch = collate([Group(Prompt(0, "", prompt), tuple(completions), tuple(Score(rewards[p]) for p in paths))])
    batch = batch.with_advantages(batch.rewards[:, None].expand(-1, 2)).having(
        token_weights=torch.stack(weights)[:, None].expand(-1, 2)
    )
    learner = make_learner("reinforce", kl_coef=0.0)
    learner.accumulate(batch)
    found = torch.cat([part.flatten() for part in learner.optimizer.gradients().values()])
    assert (found - right).abs().max() < 1e-10
    assert right.abs().max() > 1e-2


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_greedy_text_is_not_truncated(cut: dict[str, float]) -> None:
    assert not Sampling(temperature=0, **cut).truncation
    assert Sampling(temperature=1, **cut).truncation
