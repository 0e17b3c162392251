"""The critic: values where they belong, gradients that are right however the batch is cut, exact state, and warm-up."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fakes.architectures import architecture
from fakes.learning import carried_over, make_learner, with_reference
from fakes.tiny_policy import random_groups
from fakes.tolerance import assert_close
from oncurve.advantages import GAEAdvantage
from oncurve.batching import collate
from oncurve.learner import (
    ActorCritic,
    CriticConfig,
    LearnerConfig,
    SharedActorCritic,
    SharedCriticConfig,
    scheduled_rate,
)
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.models import wrap
from oncurve.types import TrainBatch


def built(
    kind: type[CriticConfig | SharedCriticConfig],
    dtype: torch.dtype = torch.float64,
    budget: int = 10_000,
    **settings: object,
) -> Any:
    actor = make_learner(dtype=dtype, kl_coef=0.0, tokens_per_micro_batch=budget, learning_rate=0.01)
    return kind(learning_rate=0.02, **settings).build(actor)


def spread(head: nn.Linear) -> None:
    """Values that say something: the head begins at 0."""
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-0.3, 0.4, head.weight.numel()).view_as(head.weight))


def ready(learner: ActorCritic | SharedActorCritic, seed: int = 0) -> TrainBatch:
    batch = with_reference(learner, collate(random_groups(seed=seed)))
    batch = batch.with_advantages(GAEAdvantage(lam=0.9)(batch))
    return batch.with_weights(TokenMean()(batch))


def test_a_value_is_read_before_its_token() -> None:
    module = architecture("llama", torch.float64)
    actor = LearnerConfig().build(wrap(module), Clipped(), Regularizer(KLPenalty(coef=0.0)))
    learner = CriticConfig().build(actor)
    spread(learner.critic._network.head)
    batch = collate(random_groups())
    filled = learner.critic.reader.fill(batch)
    values, beyond = filled.values, filled.bootstrap_values
    head, twin = learner.critic._network.head, copy.deepcopy(module).model
    for row in range(batch.size):
        prompt, count = batch.prompts[batch.group_ids[row]], int(batch.lengths[row])
        ids = torch.cat([prompt, batch.completion_ids[row, :count]])
        hidden = twin(input_ids=ids[None]).last_hidden_state[0]
        wanted = head(hidden.to(head.weight.dtype))[len(prompt) - 1 :, 0]
        assert_close(values[row, :count], wanted[:-1].detach())
        assert_close(beyond[row], wanted[-1].detach())
        assert values[row, count:].abs().sum() == 0


def test_both_learn_on_every_update_and_the_critic_alone_while_it_warms_up() -> None:
    learner = built(CriticConfig, warmup_steps=2, clip=0.0)
    before = copy.deepcopy(learner.weights().local().module.state_dict())
    errors = []
    for update in range(6):
        batch = ready(learner)
        result = learner.update(batch)
        said = result.metrics.result()
        assert not result.skipped
        assert ("policy/objective_loss" in said) == (update >= 2)
        assert learner.version == max(0, update - 1)
        errors.append(said["critic/loss"])
        if update == 1:
            after = learner.weights().local().module.state_dict()
            assert all(torch.equal(after[name], before[name]) for name in before)
    assert errors[-1] < errors[0]
    assert not torch.equal(learner.weights().local().module.state_dict()["mix.weight"], before["mix.weight"])


@pytest.mark.parametrize("budget", [1, 12, 10_000])
def test_on_one_backbone_the_gradient_is_that_of_both_losses(budget: int) -> None:
    learner = built(SharedCriticConfig, budget=budget, coef=0.5, clip=0.0)
    learner.head.double()
    spread(learner.head)
    batch = ready(learner)
    learner.actor.accumulate(batch)
    got = torch.cat([g.flatten() for g in learner.actor.optimizer.gradients().values()])
    model = learner.weights().local()
    weights, mask = batch.token_weights, batch.existing()
    hidden = model.completion_hidden(batch.prompts, batch.group_ids, batch.completion_ids, batch.lengths)
    logprobs = torch.log_softmax(hidden / 0.7, -1).gather(1, batch.completion_ids[mask][:, None]).squeeze(1)
    values = learner.head(hidden).squeeze(1)
    loss = -(logprobs * batch.advantages[mask] * weights[mask]).sum()
    loss = loss + 0.5 * (0.5 * (values - batch.returns[mask]).square() * weights[mask]).sum()
    wanted = torch.autograd.grad(loss, list(learner.actor.optimizer.parameters.values()))
    right = torch.cat([g.flatten() for g in wanted])
    assert (got - right).norm() <= 1e-9 * right.norm()


def test_on_one_backbone_the_head_alone_warms_up_and_all_is_exact_to_the_bit(tmp_path: Path) -> None:
    straight, stopped, resumed = (built(SharedCriticConfig, torch.float32, warmup_steps=2) for _ in range(3))
    before = copy.deepcopy(straight.weights().local().module.state_dict())
    for update in range(4):
        for learner in (straight, stopped):
            said = learner.update(ready(learner, update)).metrics.result()
            assert {"critic/loss", "critic/grad_norm", "policy/objective_loss"} <= said.keys()
            assert learner.version == max(0, update - 1)
        if update == 1:
            assert all(
                torch.equal(straight.weights().local().module.state_dict()[name], before[name]) for name in before
            )
    carried_over(stopped, resumed, tmp_path)
    for learner in (straight, resumed):
        learner.update(ready(learner, 9))
    for part in (lambda learner: learner.actor.optimizer, lambda learner: learner.optimizer):
        ours, theirs = part(resumed).state(), part(straight).state()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert set(resumed.actor.optimizer.masters) == set(before)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("warmup", "rising"), [(0, 0), (3, 0), (5, 2)])
def test_the_policys_schedule_runs_over_its_own_updates(schedule: str, shared: bool, warmup: int, rising: int) -> None:
    total = 8
    settings = {"schedule": schedule, "warmup_steps": rising, "total_updates": total}
    actor = make_learner(kl_coef=0.0, learning_rate=0.01, **settings)
    learner = (SharedCriticConfig if shared else CriticConfig)(warmup_steps=warmup).build(actor)
    rates = [learner.update(ready(learner)).metrics.result().get("optim/learning_rate") for _ in range(total)]
    own = total - warmup
    assert rates[:warmup] == [None] * warmup
    assert rates[warmup:] == [scheduled_rate(0.01, update, own, rising, schedule) for update in range(own)]
