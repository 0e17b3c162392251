"""Correction of the sampler in whole steps: when there are weights, which, and what the log says of them."""

import copy

import pytest
import torch

from fakes.learning import old_logprobs
from integration.test_lagging_engine import PROMPTS, batch_seen, make as make_lagging
from oncurve import GRPO
from oncurve.base.errors import ConfigError


def make(exact: bool = False, mixed: bool = False, lag: bool = True, **sections: object) -> GRPO:
    return make_lagging(exact, mixed, lag, **{"correction": {"kind": "truncated"}, **sections})


@pytest.mark.parametrize("updates", [{}, {"ppo_epochs": 2}, {"minibatches": 3}])
def test_old_logprobs_are_the_learners_and_the_weights_are_theirs_to_the_samplers(updates: dict):
    trainer = make(mixed=True, learner=updates)
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
    trainer = make()
    trainer.train_step(PROMPTS)
    said = trainer.train_step(PROMPTS)
    assert said["policy/mismatch"] > 0.05
    assert said["policy/ratio_max"] == pytest.approx(1, abs=1e-9)
    assert said["policy/clip_high"] == said["policy/clip_low"] == 0


def test_of_an_exact_engine_only_completions_by_older_weights_are_corrected():
    trainer = make(exact=True, mixed=True)
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
        trainer = make(lag=False, correction={"kind": kind})
        for _ in range(2):
            assert batch_seen(trainer).policy_weights is None
            said = trainer.train_step(PROMPTS)
            assert not [key for key in said if key.startswith("correction/")]
        weights.append(copy.deepcopy(trainer.model.state_dict()))
    assert all(torch.equal(one[name], weights[0][name]) for one in weights for name in one)


def test_the_tokens_with_the_highest_entropy_need_one_pass_more_and_keep_the_ratio():
    trainer = make(lag=False, correction={"kind": "none"}, filter={"top_entropy": 0.3})
    batch = batch_seen(trainer)
    assert batch.old_logprobs is None
    kept = batch.policy_weights.bool()
    assert (batch.policy_weights == kept).all()
    assert 0.3 <= float(kept[batch.loss_mask].double().mean()) < 0.6
    assert batch.entropy[kept].min() >= batch.entropy[batch.loss_mask & ~kept].max()
    assert trainer.train_step(PROMPTS)["policy/ratio"] == 1


def test_the_filter_of_tokens_and_the_correction_go_together():
    both = {"top_entropy": 0.3, "off_policy_threshold": 0.01}
    trainer = make(filter=both, learner={"ppo_epochs": 2})
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
    trainer = make(correction={"kind": "mine.py:Halved"})
    trainer.train_step(PROMPTS)
    batch = batch_seen(trainer)
    ratio = (batch.old_logprobs - batch.rollout_logprobs).exp() / 2
    torch.testing.assert_close(batch.policy_weights[batch.loss_mask], ratio[batch.loss_mask])
    with pytest.raises(ConfigError, match=r"correction\.kind: OneEach must return an oncurve\.losses\.Importance"):
        make(correction={"kind": "mine.py:OneEach"}).train_step(PROMPTS)
