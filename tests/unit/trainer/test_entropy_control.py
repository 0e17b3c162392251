"""The adaptive entropy bonus: its coefficient from step to step, its gradient, and a run that is resumed."""

import shutil
from pathlib import Path

import pytest
import torch

from fakes.learning import finished, gradient, make_learner
from fakes.loops import make_loop, resumed
from fakes.tiny_policy import random_groups, tiny_model
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import Clipped, EntropyBonus, KLPenalty, Regularizer
from oncurve.metrics import Metrics
from oncurve.trainer import EntropyControl, Trainer, TrainerState
from oncurve.types import TokenStats


def test_the_coefficient_grows_below_the_target_and_counts_only_there() -> None:
    # by hand, target 0.2, step 0.005: entropies of steps 1 to 6, then c and α of the step after each
    bonus = EntropyBonus(target=0.2)
    entropies = [0.15, 0.10, 0.30, 0.20, 0.30, 0.50]
    expected_c = [0.005, 0.010, 0.005, 0.005, 0.0, 0.0]
    expected_alpha = [0.005, 0.010, 0.0, 0.005, 0.0, 0.0]
    control, state, metrics = EntropyControl(bonus), TrainerState(), Metrics()
    batch = finished(make_learner(kl_coef=0.0), random_groups())
    assert control.with_coef(batch, state, metrics).entropy_coef.tolist() == [0.0] * batch.size
    for entropy, c, alpha in zip(entropies, expected_c, expected_alpha, strict=True):
        state = control.after(state, entropy)
        assert state.entropy_coef == pytest.approx(c, abs=1e-15)
        assert control.with_coef(batch, state, metrics).entropy_coef.tolist() == pytest.approx([alpha] * batch.size)
    assert control.after(state, None) == state
    assert metrics.result()["policy/entropy_coef"] == 0


def test_without_a_target_the_coefficient_is_the_settings_and_the_batch_stays() -> None:
    bonus, batch = EntropyBonus(coef=0.01), finished(make_learner(kl_coef=0.0), random_groups())
    assert bonus.steered(0.01, 0.0) == bonus.in_force(0.01, None) == 0.01
    control = EntropyControl(bonus)
    assert control.with_coef(batch, TrainerState(), Metrics()) is batch
    assert control.after(TrainerState(), 0.1) == TrainerState()


def steered_learner(**settings: int) -> LocalLearner:
    regularizer = Regularizer(KLPenalty(coef=0.0), steered=True)
    return LearnerConfig(**settings).build(tiny_model(), Clipped(), regularizer, temperature=0.7)


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [8, 10**6])
def test_its_gradient_is_that_of_the_constant_bonus_in_any_split(alpha: float, tokens: int) -> None:
    constant = make_learner(kl_coef=0.0, entropy_coef=alpha)
    batch = finished(constant, random_groups(rewards=[[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]))
    given = batch.having(entropy_coef=torch.full((batch.size,), alpha, dtype=torch.float64))
    found = gradient(steered_learner(tokens_per_micro_batch=tokens), given)
    torch.testing.assert_close(found, gradient(constant, batch), atol=1e-13, rtol=1e-10)


def test_a_batch_without_the_coefficient_is_refused() -> None:
    batch = finished(make_learner(kl_coef=0.0), random_groups())
    stats = TokenStats(batch.rollout_logprobs, entropy=torch.zeros_like(batch.rollout_logprobs))
    with pytest.raises(ValueError, match="needs the batch's entropy_coef"):
        Regularizer(KLPenalty(coef=0.0), steered=True)(stats, batch)


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


def test_a_resumed_run_has_the_same_coefficients_and_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    bonus = EntropyBonus(target=2.0, step=0.01)
    one = loop_of(bonus, whole, ppo_epochs=2)
    one.train()
    shutil.copytree(whole, cut)
    for number, path in durable.numbered(cut / "checkpoints"):
        if number > 3:
            shutil.rmtree(path)
    two = resumed(loop_of(bonus, ppo_epochs=2), cut)
    assert two.state.entropy_coef is not None
    two.train()
    assert (one.state.entropy_coef, one.state.entropy) == (two.state.entropy_coef, two.state.entropy)
    masters = (loop.learner.optimizer.masters.values() for loop in (one, two))
    assert all(torch.equal(left, right) for left, right in zip(*masters, strict=True))


def test_what_it_goes_with() -> None:
    with pytest.raises(ConfigError, match=r"entropy\.coef: below 0 it lowers the entropy"):
        load_config(None, ["entropy.coef=-0.1", "entropy.target=0.2"])
    config, _ = load_config(None, ["entropy.target=0.2"])
    assert config.regularizer.needs == {"entropy"}
    assert load_config(None)[0].regularizer == Regularizer(config.kl)
