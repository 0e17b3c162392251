"""Losses and advantages agree with the plain implementation: each objective, KL and aggregation, groups of any kind."""

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fakes.learning import PAIRS
from fakes.tolerance import assert_close
from oncurve import ops
from oncurve.advantages import (
    GDPOAdvantage,
    GroupAdvantage,
    MaxRLAdvantage,
    OPOAdvantage,
    PassKAdvantage,
    ReinforcePPAdvantage,
    ReinforcePPBaselineAdvantage,
    RLOOAdvantage,
)
from oncurve.batching import collate, micro_batches
from oncurve.config.sections import RunConfig
from oncurve.kl import full_kl_from_logits
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, EntropyBonus, KLPenalty, Regularizer
from oncurve.rollout import Sampling
from oncurve.types import Completion, Group, Prompt, Score, TokenStats, TrainBatch
from oracles import plain_advantages as family
from oracles.plain_grpo import PlainConfig, PlainGroup, advantages, aggregated, reference_rows

VOCABULARY, LONGEST, TEMPERATURE = 7, 6, 0.8

PLAIN = [
    PlainGroup([1, 2], [[3, 4, 0], [5, 0], [6]], [1.0, 0.25, None], trained=[[True, False, True], [True] * 2, [True]]),
    PlainGroup([4], [[2, 2, 2, 2, 0], [1, 0, 3, 3]], [0.0, 1.0], trained=[[True] * 5, [False] * 4]),
    PlainGroup([6, 5, 1], [[1, 1], [1], [2, 3], [0]], [0.5] * 4),
]


def table(seed: int) -> Tensor:
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_batch(groups: list[PlainGroup]) -> TrainBatch:
    def group(number: int, plain: PlainGroup) -> Group:
        completions = tuple(
            Completion(tuple(ids), "", (0.0,) * len(ids), "eos", index, 0)
            for index, ids in enumerate(plain.completions)
        )
        scores = tuple(Score(0.0, valid=False) if r is None else Score(r) for r in plain.rewards)
        return Group(Prompt(number, "", tuple(plain.prompt)), completions, scores)

    batch = collate([group(number, plain) for number, plain in enumerate(groups)])
    trained = [row for g in groups for row in (g.trained or [[True] * len(ids) for ids in g.completions])]
    mask = torch.zeros_like(batch.loss_mask)
    for row, flags in enumerate(trained):
        mask[row, : len(flags)] = torch.tensor(flags)
    return batch.having(loss_mask=batch.loss_mask & mask)


def as_rows(logprobs: Tensor) -> list[list[list[float]]]:
    """`(B, T)` of the batch of PLAIN, by group and completion."""
    rows = iter(logprobs.tolist())
    return [[next(rows)[: len(ids)] for ids in group.completions] for group in PLAIN]


def logits_of(weights: Tensor, batch: TrainBatch) -> Tensor:
    """`(B, T, V)`: the row of the token before, the prompt's last for the first."""
    last = torch.stack([batch.prompts[int(g)][-1] for g in batch.group_ids])
    return weights[torch.cat([last[:, None], batch.completion_ids[:, :-1]], dim=1)]


def logprobs_of(weights: Tensor, batch: TrainBatch) -> Tensor:
    return ops.token_logprobs(logits_of(weights, batch), batch.completion_ids, TEMPERATURE)


@pytest.mark.parametrize("off_policy", [True, False])
@pytest.mark.parametrize(("objective", "estimator"), PAIRS)
def test_loss_and_gradient_are_those_of_the_plain_implementation_in_every_aggregation(
    objective: str, estimator: str, off_policy: bool
) -> None:
    compare(objective, estimator, off_policy, [(aggregation, None) for aggregation in AGGREGATION_KINDS])


@pytest.mark.parametrize("off_policy", [True, False])
@pytest.mark.parametrize("objective", ["clipped", "gspo"])
def test_a_kl_term_of_its_own_aggregation_is_that_of_the_plain_implementation(objective: str, off_policy: bool) -> None:
    compare(objective, "ratio_k3" if off_policy else "k1", off_policy, list(product(AGGREGATION_KINDS, repeat=2)))


@pytest.mark.parametrize("kl", ["apart", "joined"])
@pytest.mark.parametrize("own", AGGREGATION_KINDS)
def test_a_bonus_of_its_own_aggregation_is_that_of_the_plain_implementation(own: str, kl: str) -> None:
    compare("clipped", "k3", True, [(each, own if kl == "apart" else None) for each in AGGREGATION_KINDS], bonus=own)


@pytest.mark.parametrize("aggregation", AGGREGATION_KINDS)
def test_dppo_with_the_binary_kl_is_that_of_the_plain_implementation(aggregation: str) -> None:
    compare("dppo", "k3", True, [(aggregation, None)], divergence="kl")


def compare(
    objective: str,
    estimator: str,
    off_policy: bool,
    aggregations: list[tuple[str, str | None]],
    divergence: str = "tv",
    bonus: str | None = None,
) -> None:
    weights, reference = table(0).requires_grad_(), table(1)
    batch = as_batch(PLAIN)
    old, sampler = (logprobs_of(table(0) + 0.3 * k * table(1 + k), batch) for k in (1, 2))
    batch = batch.having(rollout_logprobs=sampler, old_logprobs=old if off_policy else None)
    batch = batch.having(ref_logprobs=logprobs_of(reference, batch), advantages=GroupAdvantage()(batch))
    groups = [
        replace(g, old_logprobs=o if off_policy else None, sampler_logprobs=s)
        for g, o, s in zip(PLAIN, as_rows(old), as_rows(sampler), strict=True)
    ]
    config = PlainConfig(
        temperature=TEMPERATURE, objective=objective, dual_clip=3.0, divergence=divergence, kl=estimator, kl_coef=0.2,
        entropy_coef=0.05, max_length=LONGEST,
    )  # fmt: skip
    rows, without = (
        reference_rows(lambda ids: weights[ids[0]], groups, each, lambda ids: reference[ids[0]])
        for each in (config, replace(config, entropy_coef=0.0))
    )
    kind = OBJECTIVE_KINDS[objective]
    given = {"dual_clip": 3.0, "divergence": divergence}
    policy = kind(**{key: value for key, value in given.items() if key in kind.model_fields})
    for aggregation, kl_aggregation in aggregations:
        plain = replace(config, aggregation=aggregation, kl_aggregation=kl_aggregation)
        wanted = aggregated(rows, plain)
        if bonus is not None:
            own = replace(config, aggregation=bonus)
            wanted = aggregated(without, plain) + aggregated(rows, own) - aggregated(without, own)
        (wanted_gradient,) = torch.autograd.grad(wanted, weights, retain_graph=True)
        settings = RunConfig(
            rollout=Sampling(max_new_tokens=LONGEST),
            kl=KLPenalty(estimator=estimator, coef=0.2, aggregation=kl_aggregation),
            entropy=EntropyBonus(coef=0.05, aggregation=bonus),
            aggregation=AGGREGATION_KINDS[aggregation](),
        )
        found = in_micro_batches(
            weights, reference, batch.with_weights(settings.loss_weights(batch)), policy, settings.regularizer
        )
        (gradient,) = torch.autograd.grad(found, weights)
        torch.testing.assert_close(found.detach(), wanted.detach(), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(gradient, wanted_gradient, atol=1e-12, rtol=1e-10)


def in_micro_batches(
    weights: Tensor, reference: Tensor, batch: TrainBatch, policy: Any, regularizer: Regularizer
) -> Tensor:
    """The loss of the batch, `()`, as the sum over micro-batches that the learner makes."""
    total = torch.zeros((), dtype=torch.float64)
    for micro in micro_batches(batch, tokens_per_micro_batch=9):
        logits, ref_logits = logits_of(weights, micro), logits_of(reference, micro)
        stats = TokenStats(
            ops.token_logprobs(logits, micro.completion_ids, TEMPERATURE),
            entropy=ops.entropy(logits, TEMPERATURE),
            full_kl=full_kl_from_logits(logits, ref_logits, TEMPERATURE),
        )
        total = total + (policy(stats, micro) + regularizer(stats, micro)).weighted(micro)
    return total


WEIGHTS = (1.0, 0.5, -0.3)


def random_groups(rng: random.Random) -> list[Group]:
    """One to four groups of two to five completions; some are not valid, some tokens are not trained."""
    groups = []
    for number in range(rng.randint(1, 4)):
        completions, scores = [], []
        for index in range(rng.randint(2, 5)):
            length = rng.randint(1, 5)
            trained = tuple(rng.random() < 0.7 for _ in range(length))
            completions.append(Completion((3,) * length, "", (-1.0,) * length, "eos", index, 0, trained))
            parts = {str(k): None if k and rng.random() < 0.2 else rng.choice([0.0, 0.25, 1.0]) for k in range(3)}
            valid = rng.random() < 0.85
            scores.append(Score(rng.choice([0.0, 0.5, 0.5, 2.0]) if valid else 0.0, valid, parts, weights=WEIGHTS))
        groups.append(Group(Prompt(number, "", (1,)), tuple(completions), tuple(scores)))
    return groups


def rewards(groups: list[Group]) -> list[list[float | None]]:
    return [[score.reward if score.valid else None for score in group.scores] for group in groups]


def check(got: Tensor, batch: TrainBatch, per_completion: list[list[float]]) -> None:
    expected = torch.tensor([x for group in per_completion for x in group], dtype=torch.float64)[:, None]
    torch.testing.assert_close(got, expected * batch.existing(), atol=1e-12, rtol=1e-10)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_outcome_advantages(seed: int) -> None:
    groups = random_groups(random.Random(seed))
    batch = collate(groups)
    given = rewards(groups)
    lengths = [[sum(c.trained or ()) for c in group.completions] for group in groups]
    check(RLOOAdvantage()(batch), batch, family.rloo(given))
    check(MaxRLAdvantage(eps=1e-3)(batch), batch, family.maxrl(given, 1e-3))
    check(OPOAdvantage()(batch), batch, family.opo(given, lengths))
    check(PassKAdvantage(ddof=0, eps=0.1)(batch), batch, family.passk(given, 0, 0.1))
    check(PassKAdvantage(scale="none")(batch), batch, family.passk(given, 0, None))
    values = [
        [[math.nan if v is None else v for v in s.parts.values()] if s.valid else None for s in group.scores]
        for group in groups
    ]
    for ddof in (0, 1):
        right = family.gdpo(values, list(WEIGHTS), ddof, 1e-3)
        check(GDPOAdvantage(ddof=ddof, eps=1e-3)(batch), batch, right)
        mask = batch.loss_mask.tolist()
        rows = [[x or 0.0] * batch.loss_mask.shape[1] for group in right for x in group]
        got = GDPOAdvantage(ddof=ddof, eps=1e-3, scale="tokens")(batch)
        whole = torch.tensor(family.whitened(rows, mask), dtype=torch.float64)  # whose scale and shift change nothing
        assert_close(got, whole, torch.float32)  # eps stands outside of the scale


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=12)
def test_advantages_of_tokens(gamma: float, seed: int) -> None:
    groups = random_groups(random.Random(seed))
    batch = collate(groups)
    noise = torch.randn(batch.loss_mask.shape, generator=torch.Generator().manual_seed(seed)).double()
    batch = batch.having(token_rewards=batch.token_rewards + noise * batch.loss_mask)  # as a KL in the reward
    mask = batch.loss_mask.tolist()
    to_go = family.rewards_to_go(batch.token_rewards.tolist(), mask, gamma)
    got = ReinforcePPAdvantage(gamma=gamma)(batch)
    torch.testing.assert_close(
        got, torch.tensor(family.whitened(to_go, mask), dtype=torch.float64), atol=1e-12, rtol=1e-9
    )
    centred = advantages(rewards(groups), "none", 1, 0.0)
    rows = [[x or 0.0] * batch.loss_mask.shape[1] for group in centred for x in group]
    got = ReinforcePPBaselineAdvantage()(batch)
    torch.testing.assert_close(
        got, torch.tensor(family.whitened(rows, mask), dtype=torch.float64), atol=1e-12, rtol=1e-9
    )
