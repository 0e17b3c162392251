"""Frozen weights: no master, no moments, no gradient; the others are trained as if those stood still by themselves."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from fakes.architectures import architecture
from fakes.learning import finished
from fakes.tiny_policy import random_groups
from oncurve.learner import LearnerConfig, LocalLearner, MasterAdamW
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 30, bias=False), nn.Linear(30, 20, bias=False))
    net[0].weight.requires_grad_(False)
    return net


def give_gradients(net: nn.Module) -> None:
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones(parameter.shape)


def test_a_frozen_parameter_is_rounded_once_and_never_stepped() -> None:
    net = two_layers()
    given = net[0].weight.detach().clone()
    optimizer = MasterAdamW(net, torch.bfloat16, weight_decay=0.5)
    give_gradients(net)
    optimizer.step(0.1, optimizer.gradient_norm())
    assert optimizer.trained == ["1.weight"]
    assert list(optimizer.frozen) == ["0.weight"]
    assert torch.equal(net[0].weight, given.bfloat16())
    assert not any(name.endswith("0.weight") for name in optimizer.state())
    assert torch.equal(optimizer.masters["0.weight"], given.bfloat16().float())
    assert {master.dtype for master in optimizer.masters.values()} == {torch.float32}


def learner_of(model: CausalModel, dtype: torch.dtype, **settings: object) -> LocalLearner:
    config = LearnerConfig(learning_rate=0.05, max_grad_norm=0.0, **settings)
    return config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.1)), temperature=0.7, dtype=dtype)


def small_llama(frozen: Sequence[str] = ()) -> CausalModel:
    model = wrap(architecture("llama"))
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", [("embed_tokens",), ("lm_head",), ("embed_tokens", "layers.0", "norm")])
def test_the_other_weights_are_trained_to_the_bits_of_a_gradient_of_zero(
    frozen: tuple[str, ...], dtype: torch.dtype
) -> None:
    learner, twin = learner_of(small_llama(frozen), dtype), learner_of(small_llama(), dtype)
    still = list(learner.optimizer.frozen)
    assert still
    for seed in range(3):
        batch = finished(learner, random_groups(seed=seed))
        assert not learner.update(batch).skipped
        accumulated = twin.accumulate(batch)
        for name in still:
            twin.optimizer.gradients()[name].zero_()
        twin.apply(accumulated)
    ours, theirs = (dict(one.weights().local().module.named_parameters()) for one in (learner, twin))
    moved = {name: not torch.equal(ours[name], learner.reference.state()[name]) for name in ours}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {name for name in moved if not moved[name]} == set(still)
