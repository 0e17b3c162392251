"""A KL in the reward reaches every advantage, and the log has the estimator and the controller's quantity."""

import pytest
import torch
from torch import Tensor

from fakes.tiny_policy import TinyLM
from oncurve import GRPO
from oncurve.advantages import ADVANTAGE_KINDS
from oncurve.components import Component
from oncurve.types import TrainBatch

PROMPTS = torch.arange(6)[:, None]
KL = {"kl": {"where": "reward", "coef": 0.5, "target": 0.01, "horizon": 100.0}}


class OfTheRewards(Component):
    """r_i - mean of all r: reads the rewards and knows of no KL."""

    min_valid_completions = property(lambda self: 1)

    def __call__(self, batch: TrainBatch) -> Tensor:
        return (batch.rewards - batch.rewards.mean())[:, None] * batch.existing()


class RewardToGo(Component):
    """Σ_{s >= t} r_s: reads the rewards of the tokens."""

    min_valid_completions = property(lambda self: 1)

    def __call__(self, batch: TrainBatch) -> Tensor:
        return batch.token_rewards.flip(1).cumsum(1).flip(1) * batch.existing()


def same_for_all(completions, prompts):
    return [1.0] * len(completions)


def advantages_of(kind: type[Component], settings: dict) -> tuple[TrainBatch, dict[str, float], GRPO]:
    """The second step's batch as an advantage sees it; rewards are all the same, so that only the KL differs."""
    seen: list[TrainBatch] = []

    class Watched(kind):
        def __call__(self, batch: TrainBatch) -> Tensor:
            seen.append(batch)
            return super().__call__(batch)

    trainer = GRPO(
        TinyLM().double(),
        TinyLM(seed=1).double(),
        same_for_all,
        learning_rate=0.05,
        settings=settings,
    )
    trainer.config = trainer.config.model_copy(update={"advantage": Watched()})
    trainer.train_step(PROMPTS)
    said = trainer.train_step(PROMPTS)
    return seen[-1], said, trainer


@pytest.mark.parametrize("kind", [ADVANTAGE_KINDS["grpo"], OfTheRewards, RewardToGo])
@pytest.mark.parametrize("updates", [{}, {"learner": {"ppo_epochs": 3}}])
def test_every_advantage_sees_the_kl(kind: type[Component], updates: dict):
    batch, said, trainer = advantages_of(kind, {**KL, **updates})
    old = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    k1 = torch.where(batch.loss_mask, old - batch.ref_logprobs, 0.0)
    coef = said["policy/kl_coef"]
    assert coef == pytest.approx(0.5 * 1.048)  # steered up by a fifth of 24 completions over the horizon
    assert batch.rewards.tolist() == pytest.approx((1 - coef * k1.sum(1)).tolist())
    assert batch.token_rewards.sum(1).tolist() == pytest.approx(batch.rewards.tolist())
    assert said["reward/mean"] == 1  # what the reward function gave
    assert said["advantage/abs_mean"] > 1e-3
    assert said["policy/kl"] == pytest.approx(float(k1[batch.loss_mask].mean()))
    wanted = trainer.config.kl.steered(coef, said["policy/kl_completion_mean"], 24)
    assert trainer.state.kl_coef == pytest.approx(wanted)
    assert said["policy/kl_completion_mean"] == pytest.approx(float((k1.sum(1) / batch.loss_mask.sum(1)).mean()))


def test_without_a_kl_there_is_nothing_to_see():
    batch, said, _ = advantages_of(OfTheRewards, {"kl": {"coef": 0.0}})
    assert batch.rewards.tolist() == [1.0] * batch.size
    assert torch.equal(batch.token_rewards.sum(1), batch.rewards)
    assert said["advantage/abs_mean"] == 0
    assert "policy/kl_completion_mean" not in said
