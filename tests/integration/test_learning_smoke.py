"""A policy learns what it is rewarded for: engine and learner by a loop written out by hand, in seconds."""

import pytest
import torch

from fakes.learning import old_logprobs, with_reference
from fakes.tiny_policy import VOCABULARY, TinyLM
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate, minibatches
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.metrics import Metrics
from oncurve.models.generic import GenericModel
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Completion, Group, Prompt, Score


def prompts_of(step: int) -> list[Prompt]:
    """Every token once, as a prompt of its own."""
    return [Prompt(step * VOCABULARY + token, "", (token,)) for token in range(VOCABULARY)]


def echoes(group: Group, completion: Completion) -> float:
    """The share of tokens that repeat the prompt's one token."""
    return sum(token == group.prompt.ids[0] for token in completion.ids) / len(completion.ids)


def learn(steps: int, updates: int, dtype: torch.dtype | None = None) -> tuple[list[float], list[dict[str, float]]]:
    """Mean reward and metrics of each step."""
    model = GenericModel(TinyLM(width=24, seed=3))
    for parameter in model.module.parameters():
        parameter.data.mul_(0.4)  # near uniform: every token is tried
    config = LearnerConfig(learning_rate=0.02, minibatches=updates)
    learner = config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.001)), dtype=dtype)
    engine = InProcessEngine(Sampling(group_size=8, max_new_tokens=3), seed=0)
    rewards, said = [], []
    for step in range(steps):
        engine.follow(learner.weights())
        groups = [
            Group(group.prompt, group.completions, tuple(Score(echoes(group, c)) for c in group.completions))
            for group in engine.generate(prompts_of(step), draw=step)
        ]
        batch = with_reference(learner, collate(groups))
        if updates > 1:
            batch = batch.having(old_logprobs=old_logprobs(learner, batch))
        batch = batch.with_advantages(GroupAdvantage()(batch))
        metrics = Metrics()
        for number, minibatch in enumerate(minibatches(batch, updates, seed=0, step=step, pass_index=0)):
            result = learner.update(minibatch.with_weights(TokenMean()(minibatch)))
            metrics.merge(result.metrics, off_policy=number > 0)
            assert not result.skipped
        rewards.append(float(batch.rewards.mean()))
        said.append(metrics.result())
    return rewards, said


@pytest.mark.parametrize(("updates", "dtype"), [(1, None), (4, None), (1, torch.bfloat16)])
def test_a_tiny_policy_learns_to_echo_its_prompt(updates: int, dtype: torch.dtype | None) -> None:
    rewards, said = learn(60, updates, dtype)
    assert sum(rewards[:5]) / 5 < 0.25
    assert sum(rewards[-5:]) / 5 > 0.8
    assert said[0]["policy/mismatch_max"] < (1e-5 if dtype is None else 0.05)
    assert said[0]["policy/kl"] == 0
    assert said[-1]["policy/entropy"] < said[0]["policy/entropy"]
