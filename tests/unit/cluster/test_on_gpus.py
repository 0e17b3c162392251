"""Clusters whose model is on a GPU. They are skipped where there is none, or fewer than they need."""

from functools import partial
from typing import Any

import pytest
import torch

from fakes.tiny_policy import random_groups, tiny_model
from fakes.tolerance import assert_close
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import HostCluster
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.models import LocalWeights
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt

SAMPLING = Sampling(group_size=3, max_new_tokens=8)
PROMPTS = [Prompt(number, "", (number, 3)) for number in range(5)]


def needs_gpus(count: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"there are fewer than {count} GPUs")


def sampled(count: int, **settings: object) -> list[list[Group]]:
    """Three rollouts, the weights being others in each."""
    model = tiny_model(torch.float32)
    model.module.cuda()
    build, found = partial(InProcessEngine, SAMPLING, seed=5), []
    cluster = HostCluster.model_validate({"rollout_workers": count, "shard_groups": 2, **settings})
    with cluster.rollout_engine(build(), build, SAMPLING) as engine:
        for step in range(3):
            engine.follow(LocalWeights(model, step))
            found.append(engine.generate(PROMPTS, step))
            with torch.no_grad():
                for parameter in model.module.parameters():
                    parameter.mul_(1.01)
    return found


@pytest.mark.slow
@needs_gpus(1)
def test_workers_that_share_the_gpu_of_this_process_sample_its_tokens() -> None:
    assert sampled(2, rollout_gpus=0) == sampled(0)


@pytest.mark.slow
@needs_gpus(2)
def test_a_worker_on_a_gpu_of_its_own_samples_the_tokens_of_one_process() -> None:
    assert sampled(1) == sampled(0)


def weights_after_updates(ranks: int, **settings: Any) -> dict[str, torch.Tensor]:
    """Of a learner on GPUs; 0 ranks: of one process without a cluster."""
    model = tiny_model(torch.float32)
    model.module.cuda()
    config = LearnerConfig(learning_rate=0.01, epsilon=1e-3)
    make = partial(config.build, model, Clipped(), Regularizer(KLPenalty(coef=0.1)))
    learner = HostCluster(learner_ranks=ranks, **settings).learner(make, [model]) if ranks else make()
    try:
        for step in range(3):
            batch = learner.score(collate(random_groups(count=4, size=4, seed=step)), frozenset({"old", "reference"}))
            batch = batch.with_advantages(GroupAdvantage()(batch))
            learner.update(batch.with_weights(TokenMean()(batch)))
        found = learner.weights().model.module
        return {name: tensor.detach().cpu() for name, tensor in found.named_parameters()}
    finally:
        learner.close()


@pytest.mark.slow
@needs_gpus(2)
def test_two_ranks_on_two_gpus_make_the_updates_of_one() -> None:
    one, two = weights_after_updates(1), weights_after_updates(2)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=needs_gpus(1)), pytest.param(2, marks=needs_gpus(2))])
@pytest.mark.parametrize("offload", [False, True])
def test_gpus_that_divide_a_model_make_the_updates_of_one_process(ranks: int, offload: bool) -> None:
    expected = weights_after_updates(0)
    found = weights_after_updates(ranks, sharding="fsdp", offload=offload)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert_close(found[name], tensor)
