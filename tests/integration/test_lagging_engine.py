"""An engine whose weights are one version behind: the log says so, and a correction weighs what it sampled."""

import copy
import math

import pytest
import torch

from fakes.learning import old_logprobs
from fakes.tiny_policy import TinyLM
from oncurve import GRPO
from oncurve.base.errors import ConfigError
from oncurve.kl import k3
from oncurve.metrics import Metrics
from oncurve.models import LocalWeights, Weights
from oncurve.rollout import EngineBase, InProcessEngine
from oncurve.types import Prompt, TrainBatch

PROMPTS = torch.arange(6)[:, None] % 11


class LaggingEngine(EngineBase):
    """Samples with the weights that it was given last but one; every other group with the last where `mixed`."""

    def __init__(self, inner: InProcessEngine, exact: bool = False, mixed: bool = False) -> None:
        self.inner, self.mixed = inner, mixed
        self.held: list[LocalWeights] = []
        self.exact = exact

    def follow(self, weights: Weights) -> None:
        self.held = [*self.held[-1:], LocalWeights(copy.deepcopy(weights.local()), weights.version)]

    def close(self) -> None:
        self.inner.close()

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        groups = []
        for index, prompt in enumerate(prompts):
            self.inner.follow(self.held[-1 if self.mixed and index % 2 else 0])
            groups += self.inner.generate([prompt], draw, sampling, None, [first_samples[index]])
            if on_group is not None:
                on_group(index, groups[-1])
        return groups


def rewards(completions, prompts):
    return [float((completion == 7).float().mean()) for completion in completions]


def make(exact: bool = False, mixed: bool = False, lag: bool = True, **sections: object) -> GRPO:
    settings = {**sections, "learner": {"max_grad_norm": 0.0, **sections.get("learner", {})}}
    trainer = GRPO(
        TinyLM().double(), None, rewards, group_size=4, learning_rate=0.2, kl_coef=0.05, settings=settings, seed=3
    )
    if lag:
        trainer.engine = LaggingEngine(trainer.engine, exact, mixed)
    return trainer


def batch_seen(trainer: GRPO) -> TrainBatch:
    """The batch of the next step as it comes to the advantage, without making the step."""
    stepping = trainer._trainer([Prompt(index, "", tuple(row.tolist())) for index, row in enumerate(PROMPTS)])
    stepping.groups.engine = copy.copy(trainer.engine)  # which keeps what it held
    stepping.groups.engine.follow(stepping.learner.weights())
    return stepping.score(stepping.collect(Metrics()).usable, Metrics())


def test_the_ratio_is_that_of_the_present_to_the_lagging_weights():
    trainer = make()
    first = trainer.train_step(PROMPTS)  # sampled with the present weights: there are no others yet
    assert first["policy/ratio"] == pytest.approx(1, abs=1e-9)
    batch = batch_seen(trainer)
    present = old_logprobs(trainer.learner, batch)
    gap = (present - batch.rollout_logprobs)[batch.loss_mask]
    said = trainer.train_step(PROMPTS)
    assert said["policy/mismatch"] == pytest.approx(float(gap.abs().mean()), rel=1e-6)
    assert said["policy/mismatch"] > 0.05
    assert said["policy/ratio"] == pytest.approx(float(gap.exp().mean()), rel=1e-6)
    assert said["policy/ratio_max"] == pytest.approx(float(gap.exp().max()), rel=1e-6)
    assert abs(said["policy/ratio"] - 1) > 1e-3
    kl = k3(present, batch.ref_logprobs.double())[batch.loss_mask]
    assert said["policy/kl"] == pytest.approx(float(kl.mean()), rel=1e-4)


@pytest.mark.parametrize("updates", [{}, {"ppo_epochs": 2}, {"minibatches": 3}])
def test_old_logprobs_are_the_recorded_ones_where_the_weights_lag_and_the_learners_elsewhere(updates: dict):
    trainer = make(mixed=True, learner=updates)
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    stale = batch.policy_versions != trainer.learner.version
    assert stale.tolist() == [True, True, True, True, False, False, False, False] * 3
    assert torch.equal(batch.old_logprobs[stale], batch.rollout_logprobs[stale])
    assert torch.equal(batch.old_logprobs[~stale].double(), old_logprobs(trainer.learner, batch)[~stale].double())


def test_an_engine_that_is_not_exact_gets_old_logprobs():
    trainer = make(mixed=True)
    trainer.engine.held = []
    batch = batch_seen(trainer)  # all groups are of the present weights here
    assert torch.equal(batch.old_logprobs, old_logprobs(trainer.learner, batch))
    assert trainer.train_step(PROMPTS)["policy/ratio"] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "given", [{"exact": True}, {"mixed": True, "learner": {"old_logprobs": "rollout", "ppo_epochs": 2}}]
)
def test_the_versions_stand_against_what_the_engine_states_and_the_recorded_ones_may_be_asked_for(given: dict):
    trainer = make(**given)
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    assert torch.equal(batch.old_logprobs, batch.rollout_logprobs)


def test_the_built_in_engine_needs_no_pass_with_one_update():
    trainer = make(lag=False)
    for _ in range(2):
        assert batch_seen(trainer).old_logprobs is None
        assert trainer.train_step(PROMPTS)["policy/ratio"] == 1


@pytest.mark.parametrize("updates", [{"ppo_epochs": 4}, {"ppo_epochs": 2, "minibatches": 3}])
def test_the_kl_is_measured_before_the_first_update_of_a_step(updates: dict):
    trainer = make(lag=False, learner=updates)
    assert trainer.train_step(PROMPTS)["policy/kl"] == pytest.approx(0, abs=1e-12)  # however far its updates went
    batch = batch_seen(trainer)
    said = trainer.train_step(PROMPTS)
    assert said["policy/mismatch_max"] < 1e-6
    if "minibatches" not in updates:
        kl = k3(batch.old_logprobs, batch.ref_logprobs)[batch.loss_mask]
        assert said["policy/kl"] == pytest.approx(float(kl.mean()), rel=1e-6)
    assert math.isfinite(said["policy/kl"])


def corrected(exact: bool = False, mixed: bool = False, lag: bool = True, **sections: object) -> GRPO:
    return make(exact, mixed, lag, **{"correction": {"kind": "truncated"}, **sections})


@pytest.mark.parametrize("updates", [{}, {"ppo_epochs": 2}, {"minibatches": 3}])
def test_old_logprobs_are_the_learners_and_the_weights_are_theirs_to_the_samplers(updates: dict):
    trainer = corrected(mixed=True, learner=updates)
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    old = old_logprobs(trainer.learner, batch)
    assert torch.equal(batch.old_logprobs, old)
    ratio = (old - batch.rollout_logprobs).exp()[batch.loss_mask]
    assert (ratio > 2).any()
    torch.testing.assert_close(batch.policy_weights[batch.loss_mask], ratio.clamp(max=2.0))
    said = trainer.train_step(PROMPTS)
    assert said["correction/weight"] == pytest.approx(float(ratio.mean()))
    assert said["correction/weight_max"] == pytest.approx(float(ratio.max()))
    assert said["correction/bounded"] == pytest.approx(float((ratio > 2).double().mean()))
    used = ratio.clamp(max=2.0)
    size = float(used.sum() ** 2 / (used.square().sum() * used.numel()))
    assert said["correction/effective_sample_size"] == pytest.approx(size)
    assert 0 < size < 1


def test_with_one_update_the_ratio_is_1_and_the_weights_alone_correct():
    trainer = corrected()
    trainer.train_step(PROMPTS)
    said = trainer.train_step(PROMPTS)
    assert said["policy/mismatch"] > 0.05
    assert said["policy/ratio_max"] == pytest.approx(1, abs=1e-9)
    assert said["policy/clip_high"] == said["policy/clip_low"] == 0


def test_of_an_exact_engine_only_completions_by_older_weights_are_corrected():
    trainer = corrected(exact=True, mixed=True)
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    stale = batch.policy_versions != trainer.learner.version
    assert stale.tolist() == [True, True, True, True, False, False, False, False] * 3
    assert torch.equal(batch.old_logprobs, old_logprobs(trainer.learner, batch))
    assert (batch.policy_weights[~stale] == 1).all()
    assert (batch.policy_weights[stale] != 1).any()


def test_an_exact_engine_with_the_present_weights_has_the_same_bits_as_without_a_correction():
    weights = []
    for kind in ("none", "truncated", "masked"):
        trainer = corrected(lag=False, correction={"kind": kind})
        for _ in range(2):
            assert batch_seen(trainer).policy_weights is None
            said = trainer.train_step(PROMPTS)
            assert not [key for key in said if key.startswith("correction/")]
        weights.append(copy.deepcopy(trainer.model.state_dict()))
    assert all(torch.equal(one[name], weights[0][name]) for one in weights for name in one)


def test_the_tokens_with_the_highest_entropy_need_one_pass_more_and_keep_the_ratio():
    trainer = corrected(lag=False, correction={"kind": "none"}, filter={"top_entropy": 0.3})
    batch = batch_seen(trainer)
    assert batch.old_logprobs is None
    kept = batch.policy_weights.bool()
    assert (batch.policy_weights == kept).all()
    assert 0.3 <= float(kept[batch.loss_mask].double().mean()) < 0.6
    assert batch.entropy[kept].min() >= batch.entropy[batch.loss_mask & ~kept].max()
    assert trainer.train_step(PROMPTS)["policy/ratio"] == 1


def test_the_filter_of_tokens_and_the_correction_go_together():
    both = {"top_entropy": 0.3, "off_policy_threshold": 0.01}
    trainer = corrected(filter=both, learner={"ppo_epochs": 2})
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    kept = batch.policy_weights > 0
    assert 0.3 <= float(kept[batch.loss_mask].double().mean()) < 0.6
    ratio = (batch.old_logprobs - batch.rollout_logprobs).exp().clamp(max=2.0)
    torch.testing.assert_close(batch.policy_weights[kept], ratio[kept])
    assert trainer.train_step(PROMPTS)["filter/off_policy"] > 0


CORRECTIONS = """
from oncurve.losses import ImportanceWeights
from oncurve.components import Component


class Halved(Component):
    def __call__(self, log_ratio, loss_mask):
        weights = log_ratio.exp() / 2
        return ImportanceWeights(weights, weights)


class OneEach(Component):
    def __call__(self, log_ratio, loss_mask):
        return log_ratio.exp()
"""


def test_a_correction_may_be_a_class_of_yours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CORRECTIONS)
    trainer = corrected(correction={"kind": "mine.py:Halved"})
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    ratio = (batch.old_logprobs - batch.rollout_logprobs).exp() / 2
    torch.testing.assert_close(batch.policy_weights[batch.loss_mask], ratio[batch.loss_mask])
    with pytest.raises(ConfigError, match=r"correction\.kind: OneEach must return an oncurve\.losses\.Importance"):
        corrected(correction={"kind": "mine.py:OneEach"}).train_step(PROMPTS)
