"""Tokens that the policy did not write (`Completion.trained`) are as if they were not there, wherever they stand.

In every test their places hold NaN, in each stream that says something of them; losses, gradients and statistics must
be those of the completions without these tokens. Masks have gaps in the middle, at the first and at the last token, and
whole completions of which nothing is trained.
"""

import copy
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fakes.learning import finished, gradient, make_learner, plain_groups, relative_error, weigher
from fakes.tiny_policy import VOCABULARY, groups_with_gaps, tiny_model
from oncurve.advantages import GAEAdvantage, GroupAdvantage, ProcessAdvantage
from oncurve.batching import collate
from oncurve.kl import KL_KINDS
from oncurve.learner import CriticConfig
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, PolicyAndApart, Regularizer, ValueLoss
from oncurve.metrics import Metrics
from oncurve.models import token_stats
from oncurve.models.generic import plain_logits
from oncurve.trainer import KLControl
from oncurve.types import Completion, Group, Prompt, Score, TokenLoss, TokenStats, TrainBatch, axes_of
from oracles.plain_advantages import whitened
from oracles.plain_gae import plain_gae
from oracles.plain_grpo import PlainConfig, reference_loss
from oracles.plain_grpo.loss import completion_losses, log_distributions
from oracles.plain_head import plain_logprobs
from oracles.plain_process import plain_process_advantages

seeds = st.integers(0, 2**31)


def gappy(seed: int, steps: bool = False) -> list[Group]:
    """Three groups of four completions with gaps; with `steps`, some of them with rewards at any of their tokens."""
    rng = random.Random(seed)
    groups = groups_with_gaps(seed)

    def stepwise(score: Score, length: int) -> Score:
        ends = tuple(sorted(rng.randrange(length) for _ in range(rng.randint(0, 3)))) if steps else ()
        return replace(score, step_ends=ends, step_rewards=tuple(rng.gauss(0, 1) for _ in ends))

    return [
        replace(
            group,
            scores=tuple(stepwise(s, len(c.ids)) for s, c in zip(group.scores, group.completions, strict=True)),
        )
        for group in groups
    ]


def streams(batch: TrainBatch, seed: int) -> TrainBatch:
    """The batch with every `(B, T)` stream that an update reads, at random, and group advantages."""
    generator = torch.Generator().manual_seed(seed)
    old, reference, values, returns = torch.randn(4, *batch.loss_mask.shape, generator=generator).double()
    batch = batch.having(old_logprobs=old - 2, ref_logprobs=reference - 2, values=values, returns=returns)
    return batch.with_advantages(GroupAdvantage()(batch))


POISONED = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "values", "advantages", "returns")


def poisoned(batch: TrainBatch) -> TrainBatch:
    """The batch with NaN in every stream where no token is trained, padding included."""
    known = {name: getattr(batch, name) for name in POISONED}
    return batch.having(**{n: nan_outside(batch.loss_mask, x) for n, x in known.items() if x is not None})


def nan_outside(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, x, torch.nan)


def without_gaps(batch: TrainBatch) -> TrainBatch:
    """The batch of the trained tokens alone: each row closed up, rows without any taken out."""
    rows = batch.loss_mask.any(1)
    lengths = batch.loss_mask.sum(1)[rows]
    closed = torch.arange(batch.loss_mask.shape[1]) < lengths[:, None]

    def close(x: Tensor) -> Tensor:
        return torch.zeros_like(x[rows]).masked_scatter(closed, x[batch.loss_mask])

    taken = {n: close(x) for n, a in axes_of(batch).items() if a == "BT" and (x := getattr(batch, n)) is not None}
    by_row = {
        n: x[rows] for n, a in axes_of(batch).items() if a in ("B", "BS", "BK") and (x := getattr(batch, n)) is not None
    }
    return batch.having(**taken, **by_row).having(lengths=lengths, loss_mask=closed)


def observed(loss: TokenLoss, mask: Tensor) -> dict[str, float]:
    metrics = Metrics()
    for key, values in loss.stats.items():
        metrics.add(key, values, mask)
    return metrics.result()


def measure(objective: str, regularizer: Regularizer, batch: TrainBatch, seen: TokenStats) -> tuple:
    """Loss, gradient at each trained token of each stream of `seen`, statistics; 0 is the gradient elsewhere."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in vars(seen).items() if value is not None}
    stats = TokenStats(**leaves)
    token = OBJECTIVE_KINDS[objective]()(stats, batch) + regularizer(stats, batch)
    loss = token.weighted(batch)
    loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert all(gradient[~batch.loss_mask].count_nonzero() == 0 for gradient in gradients.values())
    return loss.detach(), {n: g[batch.loss_mask] for n, g in gradients.items()}, observed(token, batch.loss_mask)


@pytest.mark.parametrize("objective", OBJECTIVE_KINDS)
@given(
    seed=seeds,
    aggregation=st.sampled_from(sorted(AGGREGATION_KINDS)),
    estimator=st.sampled_from(sorted(KL_KINDS)),
    kl_aggregation=st.sampled_from([None, *AGGREGATION_KINDS]),
    on_policy=st.booleans(),
)
@settings(max_examples=10)
def test_losses_gradients_and_statistics_are_those_of_the_trained_tokens(
    objective: str, aggregation: str, seed: int, estimator: str, kl_aggregation: str | None, on_policy: bool
) -> None:
    batch = streams(collate(gappy(seed)), seed)
    if on_policy:
        batch = batch.having(old_logprobs=None)
    weigh = weigher(aggregation)
    if kl_aggregation is not None:
        weigh = PolicyAndApart(weigh, weigher(kl_aggregation))
    generator = torch.Generator().manual_seed(~seed)
    names = ("logprobs", "entropy", "full_kl", "values")
    said = {n: torch.randn(batch.loss_mask.shape, generator=generator).double() for n in names}
    kl = KLPenalty(estimator=estimator, coef=0.1, aggregation=kl_aggregation)
    apart = kl_aggregation is not None and on_policy
    regularizer = Regularizer(kl, 0.01, ValueLoss(0.2, 0.5), entropy_apart=apart)

    holey = poisoned(batch)
    there = TokenStats(**{name: nan_outside(batch.loss_mask, x) for name, x in said.items()})
    found = measure(objective, regularizer, holey.with_weights(weigh(holey)), there)

    alone = without_gaps(batch)
    closed = {n: torch.zeros(alone.loss_mask.shape).double() for n in names}
    for name, x in said.items():
        closed[name][alone.loss_mask] = x[batch.loss_mask]
    wanted = measure(objective, regularizer, alone.with_weights(weigh(alone)), TokenStats(**closed))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@given(seed=seeds)
@settings(max_examples=20)
def test_a_kl_in_the_reward_is_that_of_the_trained_tokens(seed: int) -> None:
    batch = streams(collate(gappy(seed, steps=True)), seed)
    control = KLControl(KLPenalty(where="reward", coef=0.3, target=0.1, horizon=50.0))
    metrics, wanted_metrics = Metrics(), Metrics()
    found = control.add_kl_to_rewards(poisoned(batch), None, metrics)
    kl = [
        [o - r if on else 0.0 for o, r, on in zip(*row, strict=True)]
        for row in zip(batch.old_logprobs.tolist(), batch.ref_logprobs.tolist(), batch.loss_mask.tolist(), strict=True)
    ]
    wanted = batch.token_rewards - 0.3 * torch.tensor(kl, dtype=torch.float64)
    torch.testing.assert_close(found.token_rewards, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.rewards, batch.rewards - 0.3 * torch.tensor(kl).double().sum(1))
    if batch.token_count:
        control.add_kl_to_rewards(without_gaps(batch), None, wanted_metrics)
        assert metrics.result() == pytest.approx(wanted_metrics.result(), rel=1e-12)
        assert control.next(poisoned(batch), None) == pytest.approx(control.next(without_gaps(batch), None), rel=1e-12)


@given(seed=seeds, gamma=st.sampled_from([1.0, 0.9]), lam=st.sampled_from([1e-9, 0.5, 1.0]), scale=st.booleans())
@settings(max_examples=30)
def test_gae_goes_from_trained_token_to_trained_token(seed: int, gamma: float, lam: float, scale: bool) -> None:
    batch = streams(collate(gappy(seed, steps=True)), seed)
    rng = random.Random(seed)
    after = [rng.gauss(0, 1) for _ in range(batch.size)]
    batch = batch.having(bootstrap_values=torch.tensor(after).double(), truncated=torch.rand(batch.size) < 0.5)
    settings_ = GAEAdvantage(gamma=gamma, lam=lam, scale="batch" if scale else "none", bootstrap=True)
    found = settings_(poisoned(batch))
    rows = zip(
        batch.token_rewards.tolist(), batch.values.tolist(), batch.loss_mask.tolist(),
        torch.where(batch.truncated, batch.bootstrap_values, 0.0).tolist(), strict=True,
    )  # fmt: skip
    plain = [plain_gae(*row[:3], gamma, lam, row[3]) for row in rows]
    wanted = [advantages for advantages, _ in plain]
    if scale:
        wanted = whitened(wanted, batch.loss_mask.tolist())
    torch.testing.assert_close(found.advantages, torch.tensor(wanted).double(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.returns, torch.tensor([r for _, r in plain]).double(), rtol=1e-6, atol=1e-9)


@given(seed=seeds)
@settings(max_examples=20)
def test_group_and_process_advantages_are_those_of_the_whole_completions(seed: int) -> None:
    """A reward is the completion's, and a step's is credited to all tokens before its end, whoever wrote its last."""
    groups = gappy(seed, steps=True)
    whole = [replace(g, completions=tuple(replace(c, trained=None) for c in g.completions)) for g in groups]
    for advantage in (GroupAdvantage(), ProcessAdvantage()):
        found, wanted = advantage(poisoned(collate(groups))), advantage(collate(whole))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    batch = collate(groups)
    rows = ProcessAdvantage()(batch)[batch.valid]
    for row, (_, _, tokens) in zip(rows, of_steps(groups), strict=True):
        assert row[: len(tokens)].tolist() == pytest.approx(tokens, abs=1e-9)


def of_steps(groups: list[Group]) -> Iterator[tuple[Prompt, Completion, list[float]]]:
    """Each valid completion with its prompt and the oracle's advantages of its tokens."""
    for group in groups:
        pairs = [pair for pair in zip(group.completions, group.scores, strict=True) if pair[1].valid]
        steps = [
            (len(c.ids), list(zip(s.step_ends, s.step_rewards, strict=True)) or [(len(c.ids) - 1, s.reward)])
            for c, s in pairs
        ]
        for (completion, _), advantages in zip(pairs, plain_process_advantages([steps])[0], strict=True):
            yield group.prompt, completion, advantages


@given(seed=seeds, objective=st.sampled_from(["clipped", "reinforce"]))
@settings(max_examples=8)
def test_the_learners_gradient_of_step_rewards_is_that_of_rows_alone(seed: int, objective: str) -> None:
    groups, config = gappy(seed, steps=True), PlainConfig(temperature=0.7, objective=objective, kl_coef=0.0)
    policy, learner = tiny_model(seed=0).module, make_learner(objective, kl_coef=0.0, tokens_per_micro_batch=40)
    batch = collate(groups)
    if not batch.token_count:
        return
    batch = batch.having(old_logprobs=batch.rollout_logprobs).with_advantages(ProcessAdvantage()(batch))
    losses = []
    for prompt, completion, advantages in of_steps(groups):
        ids, old = list(completion.ids), list(completion.logprobs)
        log_p = log_distributions(lambda ids: plain_logits(policy, ids)[0], list(prompt.ids), ids, 0.7)
        for token, advantage in enumerate(advantages):
            own = completion.trained is None or completion.trained[token]
            one = [own and token == place for place in range(len(ids))]
            losses += completion_losses(log_p, log_p.detach(), ids, old, one, advantage, config)[0]
    parts = torch.autograd.grad(torch.stack(losses).mean(), list(policy.parameters()))
    found = gradient(learner, poisoned(batch.with_weights(weigher("token-mean")(batch))))
    assert relative_error(found, torch.cat([part.flatten() for part in parts])) <= 1e-10


@pytest.mark.parametrize("objective", OBJECTIVE_KINDS)
@given(
    seed=seeds,
    budget=st.integers(1, 60),
    estimator=st.sampled_from(sorted(KL_KINDS)),
)
@settings(max_examples=3)
def test_the_learners_gradient_is_the_oracles_however_the_batch_is_cut_and_ordered(
    objective: str, seed: int, budget: int, estimator: str
) -> None:
    for aggregation in AGGREGATION_KINDS:
        compare_with_the_oracle(objective, aggregation, gappy(seed), budget, estimator)


def compare_with_the_oracle(objective: str, aggregation: str, groups: list[Group], budget: int, estimator: str) -> None:
    policy, reference = tiny_model(seed=0).module, tiny_model(seed=1).module
    config = PlainConfig(
        temperature=0.7, objective=objective, kl=estimator, kl_coef=0.1, entropy_coef=0.05,
        aggregation=aggregation, max_length=6,
    )  # fmt: skip
    logits = [lambda ids, m=module: plain_logits(m, ids)[0] for module in (policy, reference)]
    loss = reference_loss(logits[0], plain_groups(groups), config, logits[1])
    learner = make_learner(objective, estimator, entropy_coef=0.05, tokens_per_micro_batch=budget)
    turned = [replace(g, completions=g.completions[::-1], scores=g.scores[::-1]) for g in groups[::-1]]
    batch = poisoned(finished(learner, turned, aggregation))
    if not batch.token_count:
        return
    wanted = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])
    assert relative_error(gradient(learner, batch), wanted) <= 1e-9


@given(seed=seeds)
@settings(max_examples=12)
def test_the_learners_statistics_are_those_of_the_trained_tokens(seed: int) -> None:
    learner = make_learner("clipped", "k3", entropy_coef=0.05, tokens_per_micro_batch=12)
    batch = finished(learner, gappy(seed))
    found = learner.accumulate(poisoned(batch)).metrics.result()
    with torch.no_grad():
        stats = token_stats(tiny_model(), batch, frozenset({"entropy"}), 0.7)
    if batch.token_count:
        gap = (stats.logprobs - batch.rollout_logprobs).abs()[batch.loss_mask]
        assert found["policy/mismatch_max"] == pytest.approx(float(gap.max()), rel=1e-9)
        assert found["policy/mismatch"] == pytest.approx(float(gap.mean()), rel=1e-9)
        assert found["policy/entropy"] == pytest.approx(float(stats.entropy[batch.loss_mask].mean()), rel=1e-9)
    assert "metrics/nonfinite" not in found


@given(seed=seeds, blocks=st.booleans())
@settings(max_examples=15)
def test_the_head_gives_trained_tokens_the_plain_gradient_whatever_an_untrained_token_is(
    seed: int, blocks: bool
) -> None:
    """Also where an untrained token is one that the policy rules out: its log-probability is then about -1e30."""
    batch = collate(gappy(seed))
    forbidden, generator = VOCABULARY - 1, torch.Generator().manual_seed(seed)
    ids = torch.where(batch.loss_mask, batch.completion_ids % forbidden, forbidden)
    batch = batch.having(completion_ids=ids)
    hidden = torch.rand(int(batch.lengths.sum()), 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, 6, generator=generator, dtype=torch.float64)
    weight[forbidden] = -1e30
    upstream = torch.randn(batch.loss_mask.shape, generator=generator, dtype=torch.float64)
    results = []
    for fast in (True, False):
        h, w = (x.clone().requires_grad_() for x in (hidden, weight))
        if fast:
            source = FixedHead(h, w, blocks)
            seen = token_stats(source, batch, frozenset({"entropy"}), 0.7)
            kept = (seen.logprobs[batch.loss_mask], seen.entropy[batch.loss_mask])
        else:
            trained = batch.loss_mask[batch.existing()]
            kept = plain_logprobs(h[trained], w[:-1], ids[batch.loss_mask], 0.7)
        total = sum((upstream[batch.loss_mask] * x).sum() for x in kept)
        assert isinstance(total, Tensor)
        total.backward()
        results.append((total.detach(), h.grad, w.grad[:-1]))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


class FixedHead:
    """A model whose hidden states are given; its head by blocks of the vocabulary, or by chunks of tokens."""

    def __init__(self, hidden: Tensor, weight: Tensor, blocks: bool) -> None:
        self.hidden, self.weight, self.blocks = hidden, weight, blocks

    def completion_hidden(self, *_: object) -> Tensor:
        return self.hidden

    def head_matrix(self) -> Tensor | None:
        return self.weight if self.blocks else None

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight.t()


@pytest.mark.parametrize("seed", range(3))
def test_the_critic_s_gradient_is_that_of_rows_alone_without_the_gaps(seed):
    """Each row alone, by one plain forward: values before the trained tokens, their returns by a double sum."""
    learner = CriticConfig(clip=0.2).build(make_learner(kl_coef=0.0, tokens_per_micro_batch=30))
    head = learner.critic._network.double().head
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-0.3, 0.4, head.weight.numel()).view_as(head.weight))
    batch = learner.score(collate(gappy(seed, steps=True)), frozenset({"values"}))
    batch = batch.with_advantages(GAEAdvantage(lam=0.9, gamma=0.95)(batch))
    batch = batch.with_weights(weigher("token-mean")(batch))
    moved = 0.5 * torch.cos(torch.arange(batch.values.numel())).view_as(batch.values)
    batch = batch.having(values=batch.values + moved)  # so that some are beyond the clip
    learner.critic._accumulate(batch, learner.critic.budget.tokens)
    got = torch.cat([part.flatten() for part in learner.critic.optimizer.gradients().values()]).double()

    network = copy.deepcopy(learner.critic._network)
    network.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(batch.size):
        count, prompt = int(batch.lengths[row]), batch.prompts[batch.group_ids[row]]
        ids = torch.cat([prompt, batch.completion_ids[row, :count]])
        hidden = network.backbone(ids[None])[0]
        values = network.head(hidden)[len(prompt) - 1 :, 0]
        kept = batch.loss_mask[row, :count]
        weights = batch.token_weights[row, :count]
        old, wanted = batch.values[row, :count], batch.returns[row, :count]
        near = old + (values[:-1] - old).clamp(-0.2, 0.2)
        errors = torch.maximum((values[:-1] - wanted) ** 2, (near - wanted) ** 2)
        loss = loss + (weights * kept * 0.5 * errors).sum()
    loss.backward()
    wanted = torch.cat([part.grad.flatten() for part in network.parameters() if part.requires_grad])
    own = sum(part.numel() for part in head.parameters())  # whose gradient is kept in float32, as the head is made
    assert relative_error(got[:-own], wanted[:-own]) < 1e-10
    assert relative_error(got[-own:], wanted[-own:]) < 1e-6
