"""The learner's gradient is the gradient of the formulas, as a plain second implementation computes it."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from fakes.architectures import architecture
from fakes.learning import (
    AGGREGATIONS,
    MAX_LENGTH,
    PAIRS,
    finished,
    gradient,
    make_learner,
    old_logprobs,
    plain_groups,
    relative_error,
)
from fakes.tiny_policy import REWARDS, VOCABULARY, random_groups, tiny_model
from oncurve.batching import collate
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.models import wrap
from oncurve.models.generic import plain_logits
from oncurve.types import Group
from oracles.plain_grpo import PlainAdamW, PlainConfig, aggregated, reference_loss, reference_rows, reference_step
from oracles.plain_truncation import recorded, renormalised

TOLERANCE_AND_BUDGET = {torch.float64: (1e-10, 20), torch.float32: (1e-5, 10_000)}


def logits_of(module: nn.Module):
    return lambda ids: plain_logits(module, ids)[0]


@pytest.mark.parametrize(("objective", "estimator"), PAIRS)
def test_gradient_is_the_oracles_for_each_objective_and_kl_in_every_aggregation(objective: str, estimator: str) -> None:
    groups = random_groups(rewards=REWARDS)
    learners = {
        tolerance: make_learner(objective, estimator, entropy_coef=0.05, dtype=dtype, tokens_per_micro_batch=budget)
        for dtype, (tolerance, budget) in TOLERANCE_AND_BUDGET.items()
        if dtype == torch.float64 or estimator == "k3"
    }
    config = PlainConfig(
        temperature=0.7, objective=objective, kl=estimator, kl_coef=0.1, entropy_coef=0.05, max_length=MAX_LENGTH
    )
    policy, reference = tiny_model(seed=0).module, tiny_model(seed=1).module
    rows = reference_rows(logits_of(policy), plain_groups(groups), config, logits_of(reference))
    for aggregation in AGGREGATIONS:
        loss = aggregated(rows, replace(config, aggregation=aggregation))
        parts = torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)
        right = torch.cat([part.flatten() for part in parts])
        for tolerance, learner in learners.items():
            assert relative_error(gradient(learner, finished(learner, groups, aggregation)), right) <= tolerance


def truncated_groups() -> tuple[list[Group], dict[tuple[int, ...], list[list[int]]]]:
    """Groups with a kept set of every token, some of them stored by what they lack, and the sets by row."""
    chance, by_row, groups = random.Random(4), dict[tuple[int, ...], list[list[int]]](), []
    for group in random_groups(rewards=REWARDS):
        completions = []
        for completion in group.completions:
            sets = [sorted({token, 0, 1, *chance.sample(range(VOCABULARY), 3)}) for token in completion.ids]
            sizes, ids = recorded(sets, [chance.random() < 0.5 for _ in sets], VOCABULARY)
            by_row[group.prompt.ids + completion.ids] = sets
            completions.append(replace(completion, kept_sizes=sizes, kept_ids=ids))
        groups.append(replace(group, completions=tuple(completions)))
    return groups, by_row


@pytest.mark.parametrize(("objective", "estimator"), PAIRS)
def test_gradient_over_kept_sets_is_the_oracles(objective: str, estimator: str) -> None:
    groups, sets = truncated_groups()
    config = PlainConfig(
        temperature=0.7, objective=objective, kl=estimator, kl_coef=0.1, entropy_coef=0.05, max_length=MAX_LENGTH
    )
    modules = tiny_model(seed=0).module, tiny_model(seed=1).module
    policy, reference = (renormalised(logits_of(module), sets) for module in modules)
    loss = reference_loss(policy, plain_groups(groups), config, reference)
    right = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(modules[0].parameters()))])
    learner = make_learner(objective, estimator, entropy_coef=0.05, tokens_per_micro_batch=20)
    assert relative_error(gradient(learner, finished(learner, groups)), right) <= 1e-10


def test_updates_in_a_row_are_the_oracles() -> None:
    groups = random_groups(rewards=REWARDS)
    settings = {"learning_rate": 0.05, "weight_decay": 0.1, "max_grad_norm": 0.05}
    learner = make_learner(**settings)
    policy, reference = tiny_model(seed=0).module, tiny_model(seed=1).module
    judge_optimizer = PlainAdamW(**settings)
    batch = finished(learner, groups)
    for _ in range(3):
        metrics = learner.update(batch).metrics.result()
        loss, norm = reference_step(
            logits_of(policy),
            list(policy.parameters()),
            plain_groups(groups),
            PlainConfig(temperature=0.7, kl_coef=0.1),
            judge_optimizer,
            logits_of(reference),
        )
        assert metrics["policy/loss"] == pytest.approx(loss, rel=1e-10)
        assert metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-10)
    for given, right in zip(learner.weights().local().module.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(given, right, rtol=1e-9, atol=1e-12)


def near(learner: LocalLearner, groups: list[Group]) -> list[Group]:
    """The groups as a policy near the learner's might have recorded them: log-ratios within ±0.3."""
    logprobs = old_logprobs(learner, collate(groups))
    rows = iter((logprobs + 0.3 * torch.sin(torch.arange(logprobs.numel()).view_as(logprobs))).tolist())
    return [
        replace(
            group,
            completions=tuple(replace(c, logprobs=tuple(next(rows)[: len(c.ids)])) for c in group.completions),
        )
        for group in groups
    ]


@pytest.mark.parametrize(
    ("name", "objective", "estimator"),
    [("llama", "clipped", "k3"), ("mistral", "sequence_product", "full"), ("gpt2", "reinforce", "ratio_k3")],
)
def test_packed_gradient_of_real_architectures_is_the_oracles(name: str, objective: str, estimator: str) -> None:
    policy, reference = architecture(name, torch.float64, seed=0), architecture(name, torch.float64, seed=1)
    regularizer = Regularizer(KLPenalty(estimator=estimator, coef=0.1), 0.05)
    learners = [
        LearnerConfig(tokens_per_micro_batch=budget).build(
            wrap(policy), OBJECTIVE_KINDS[objective](), regularizer, temperature=0.7, reference=wrap(reference)
        )
        for budget in (15, 10_000)
    ]
    groups = near(learners[0], random_groups(rewards=REWARDS))
    config = PlainConfig(temperature=0.7, objective=objective, kl=estimator, kl_coef=0.1, entropy_coef=0.05)
    loss = reference_loss(logits_of(policy), plain_groups(groups), config, logits_of(reference))
    right = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])
    for learner in learners:
        assert learner.weights().local().fast
        assert relative_error(gradient(learner, finished(learner, groups)), right) <= 1e-10
