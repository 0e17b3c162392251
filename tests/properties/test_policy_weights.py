"""Weights of the policy term: the gradient is the oracle's, however the batch is cut; untrained tokens leave none."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fakes.learning import finished, gradient, make_learner, plain_groups, relative_error
from fakes.tiny_policy import REWARDS, groups_with_gaps, random_groups, tiny_model
from oncurve.learner import LearnerConfig
from oncurve.losses import CORRECTION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer, WithoutOffPolicy, top_entropy
from oncurve.models import token_stats
from oncurve.models.generic import plain_logits
from oncurve.types import Group
from oracles.plain_correction import importance_weights, not_off_policy, of_high_entropy
from oracles.plain_grpo import PlainConfig, PlainGroup, reference_loss

seeds = st.integers(0, 2**31)


def lists(values: Tensor, groups: list[Group]) -> list[list[float]]:
    """Rows of `(B, T)` cut to the lengths of the completions."""
    completions = [completion for group in groups for completion in group.completions]
    return [row[: len(c.ids)] for row, c in zip(values.tolist(), completions, strict=True)]


def oracle_gradient(groups: list[PlainGroup], objective: str) -> Tensor:
    policy, reference = tiny_model(seed=0).module, tiny_model(seed=1).module
    config = PlainConfig(temperature=0.7, objective=objective, kl_coef=0.1, entropy_coef=0.05)
    logits = [lambda ids, m=module: plain_logits(m, ids)[0] for module in (policy, reference)]
    loss = reference_loss(logits[0], groups, config, logits[1])
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


@pytest.mark.parametrize(
    ("objective", "level"), [("clipped", "token"), ("sequence_product", "sequence"), ("reinforce", "geometric")]
)
@pytest.mark.parametrize("kind", ["truncated", "masked"])
@given(seed=seeds, budget=st.integers(1, 60))
@settings(max_examples=2)
def test_the_corrected_gradient_is_the_oracles(kind: str, level: str, objective: str, seed: int, budget: int) -> None:
    groups = groups_with_gaps(seed)
    learner = make_learner(objective, entropy_coef=0.05, tokens_per_micro_batch=budget)
    batch = finished(learner, groups, old=False)
    if not batch.token_count:
        return
    noise = torch.randn(batch.loss_mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    old = torch.where(batch.loss_mask, batch.rollout_logprobs + noise, torch.nan)
    used = CORRECTION_KINDS[kind](level=level)(old - batch.rollout_logprobs, batch.loss_mask).used
    poisoned = torch.where(batch.loss_mask, used, torch.nan)
    found = gradient(learner, batch.having(old_logprobs=old, policy_weights=poisoned))
    weights = [
        importance_weights(o, s, on, kind, level)
        for o, s, on in zip(
            lists(old, groups), lists(batch.rollout_logprobs, groups), lists(batch.loss_mask, groups), strict=True
        )
    ]
    wanted = oracle_gradient(plain_groups(groups, weights, lists(old, groups)), objective)
    assert relative_error(found, wanted) <= 1e-10


@given(seed=seeds, budget=st.integers(1, 60), share=st.sampled_from([0.05, 0.2, 0.5]))
@settings(max_examples=4)
def test_the_gradient_of_the_tokens_with_the_highest_entropy_is_the_oracles(
    seed: int, budget: int, share: float
) -> None:
    groups = groups_with_gaps(seed)
    learner = make_learner("clipped", entropy_coef=0.05, tokens_per_micro_batch=budget)
    batch = finished(learner, groups)
    if not batch.token_count:
        return
    scored = learner.score(batch, frozenset({"entropy"}))
    assert torch.equal(scored.old_logprobs, batch.old_logprobs)
    with torch.no_grad():
        entropy = token_stats(tiny_model(), batch, frozenset({"entropy"}), 0.7).entropy
    torch.testing.assert_close(scored.entropy, entropy, rtol=1e-12, atol=1e-12)
    kept = top_entropy(scored.entropy, batch.loss_mask, share).double()
    found = gradient(learner, batch.having(policy_weights=kept))
    weights = of_high_entropy(lists(entropy, groups), lists(batch.loss_mask, groups), share)
    wanted = oracle_gradient(plain_groups(groups, weights, lists(batch.rollout_logprobs, groups)), "clipped")
    assert relative_error(found, wanted) <= 1e-10


@pytest.mark.parametrize("objective", ["clipped", "sequence_product", "reinforce"])
@given(seed=seeds, budget=st.integers(1, 60), threshold=st.sampled_from([0.01, 0.3, 1.0]))
@settings(max_examples=3)
def test_the_gradient_without_off_policy_completions_is_the_oracles(
    objective: str, seed: int, budget: int, threshold: float
) -> None:
    groups = groups_with_gaps(seed)
    learner = LearnerConfig(tokens_per_micro_batch=budget).build(
        tiny_model(seed=0),
        WithoutOffPolicy(OBJECTIVE_KINDS[objective](), threshold),
        Regularizer(KLPenalty(coef=0.1), 0.05),
        temperature=0.7,
        reference=tiny_model(seed=1),
    )
    batch = finished(learner, groups)
    if not batch.token_count:
        return
    with torch.no_grad():
        now = token_stats(tiny_model(), batch, frozenset(), 0.7).logprobs
    sampler, trained = lists(batch.rollout_logprobs, groups), lists(batch.loss_mask, groups)
    weights = [
        not_off_policy(*row, float(advantage.masked_select(on)[0]) if bool(on.any()) else 0.0, threshold)
        for *row, advantage, on in zip(
            lists(now, groups), sampler, trained, batch.advantages, batch.loss_mask, strict=True
        )
    ]
    wanted = oracle_gradient(plain_groups(groups, weights, sampler), objective)
    assert relative_error(gradient(learner, batch), wanted) <= 1e-10
    dropped = sum(
        on and w == 0 for row, ons in zip(weights, trained, strict=True) for w, on in zip(row, ons, strict=True)
    )
    said = learner.accumulate(batch).metrics.result()
    assert said["filter/off_policy"] == pytest.approx(dropped / batch.token_count, abs=1e-12)


def test_the_share_that_is_off_policy_counts_rows_that_are_not_computed() -> None:
    groups = random_groups(rewards=REWARDS)
    learner = LearnerConfig().build(
        tiny_model(), WithoutOffPolicy(OBJECTIVE_KINDS["clipped"](), 0.01), Regularizer(KLPenalty(coef=0.0))
    )
    batch = finished(learner, groups)
    with torch.no_grad():
        now = token_stats(tiny_model(), batch).logprobs
    far = (torch.where(batch.loss_mask, batch.rollout_logprobs - now, 0.0).sum(1) / batch.lengths) > 0.01
    dropped = batch.loss_mask & far[:, None] & (batch.advantages < 0)
    assert 0 < dropped.sum() < batch.token_count
    assert learner.accumulate(batch).metrics.result()["filter/off_policy"] == pytest.approx(
        float(dropped.sum()) / batch.token_count
    )


@pytest.mark.parametrize("objective", sorted(OBJECTIVE_KINDS))
def test_weights_of_1_leave_every_bit_and_those_of_0_no_gradient(objective: str) -> None:
    learner = make_learner(objective, dtype=torch.float32, kl_coef=0.0)
    batch = finished(learner, random_groups(rewards=REWARDS))
    plain = gradient(learner, batch)
    assert plain.abs().max() > 0
    assert torch.equal(gradient(learner, batch.having(policy_weights=torch.ones(batch.loss_mask.shape))), plain)
    assert not gradient(learner, batch.having(policy_weights=torch.zeros(batch.loss_mask.shape))).any()
