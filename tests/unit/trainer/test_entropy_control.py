"""The adaptive entropy bonus: its coefficient from step to step, its gradient, and a run that is resumed."""

from pathlib import Path
from typing import ClassVar

import pytest

from fakes.loops import make_loop
from fakes.tiny_policy import tiny_model
from oncurve.base.errors import ConfigError
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, EntropyBonus, KLPenalty, Regularizer
from oncurve.trainer import EntropyControl, Trainer
from oncurve.types import TokenLoss


def loop_of(bonus: EntropyBonus, folder: Path | None = None, constant: bool = False, **config: object) -> Trainer:
    reward = {"reward": lambda completions, prompts: [0.5] * len(completions)} if constant else {}
    loop = make_loop(folder, entropy=EntropyControl(bonus), steps=6, config=config, **reward)
    steered = Regularizer(KLPenalty(coef=0.0), steered=True)
    loop.learner = LearnerConfig(learning_rate=0.05).build(tiny_model(), Clipped(), steered)
    loop.outer.learner = loop.learner
    return loop


def test_a_run_follows_the_entropy_that_it_logs_and_raises_it() -> None:
    bonus = EntropyBonus(target=2.35, step=0.5)  # log 11 = 2.398 is the most there is
    loop, c, before = loop_of(bonus, constant=True), 0.0, None
    entropies = []
    for _ in range(6):
        metrics = loop.step().metrics
        used = c if before is not None and before <= bonus.target else 0.0
        assert metrics["policy/entropy_coef"] == pytest.approx(used, abs=1e-12)
        before = metrics["policy/entropy"]
        entropies.append(before)
        c = max(0.0, c + 0.5 if before < bonus.target else c - 0.5)
    assert entropies[0] < bonus.target
    assert entropies[-1] > entropies[0] + 0.2


def make(epochs: int, minibatches: int = 1, **config: object) -> Trainer:
    return make_loop(config={"ppo_epochs": epochs, "minibatches": minibatches, **config}, learning_rate=0.02)


def test_minibatches_count_and_a_target_that_is_never_reached_leaves_none_out() -> None:
    loop = make(2, minibatches=8, target_kl=1e9)  # three groups make three minibatches
    metrics = loop.step().metrics
    assert (metrics["optim/updates"], metrics["optim/updates_left_out"]) == (6, 0)


class Silent(Clipped):
    """An objective that reports no KL."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, stats, batch):
        return TokenLoss(super().__call__(stats, batch).loss)


def test_an_objective_that_reports_no_kl_is_refused() -> None:
    loop = make(2, target_kl=0.1)
    loop.learner.objective = Silent()
    with pytest.raises(ConfigError, match=r"learner\.target_kl: the objective reports no policy/kl_old"):
        loop.step()
