from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fakes.learning import carried_over, finished, gradient, make_learner, old_logprobs
from fakes.tiny_policy import TinyLM, random_groups, tiny_model
from oncurve.batching import collate
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models.generic import GenericModel

GROUPS = random_groups()


def weights(learner: LocalLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in learner.weights().local().module.parameters()])


@pytest.mark.parametrize(
    "wrong",
    [{"learning_rate": -1.0}, {"ppo_epochs": 0}, {"schedule": "exponential"}, {"betas": (0.9, 1.0)}, {"lr": 1e-6}],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LearnerConfig(**wrong)


def test_an_update_moves_the_weights_and_says_what_it_did() -> None:
    learner = make_learner(learning_rate=0.01, schedule="linear", total_updates=10)
    before = weights(learner)
    result = learner.update(finished(learner, GROUPS))
    said = result.metrics.result()
    assert not result.skipped
    assert not torch.equal(weights(learner), before)
    assert learner.version == 1
    assert said["optim/learning_rate"] == pytest.approx(0.01)
    assert said["optim/updates"] == 1
    assert said["policy/kl"] > 0
    assert said["policy/kl_coef"] == pytest.approx(0.1)
    assert {
        "policy/loss",
        "policy/objective_loss",
        "optim/grad_norm",
        "policy/entropy",
        "policy/ratio",
        "policy/clip_low",
    } <= said.keys()
    second = learner.update(finished(learner, GROUPS)).metrics.result()
    assert second["optim/learning_rate"] == pytest.approx(0.009)


def test_a_row_that_only_the_kl_term_weighs_is_computed() -> None:
    learner = make_learner(kl_coef=0.1)
    batch = finished(learner, random_groups())
    nothing = torch.zeros_like(batch.token_weights)
    held = gradient(learner, batch.having(token_weights=nothing, kl_weights=batch.token_weights))
    whole = gradient(learner, batch)
    policy = gradient(learner, batch.having(kl_weights=nothing))
    assert float(held.abs().max()) > 0
    torch.testing.assert_close(policy + held, whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("missing", ["advantages", "token_weights"])
def test_a_batch_that_is_not_finished_is_refused(missing: str) -> None:
    learner = make_learner()
    with pytest.raises(ValueError, match="advantages and token_weights"):
        learner.update(replace(finished(learner, GROUPS), **{missing: None}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_loss_changes_nothing_and_says_why(bad: float) -> None:
    learner = make_learner(learning_rate=0.01, schedule="linear", total_updates=4)
    batch = finished(learner, GROUPS)
    learner.update(batch)
    before, tensors = weights(learner), {name: t.clone() for name, t in learner.optimizer.state().items()}
    broken = batch.advantages.clone()
    broken[0, 0] = bad
    result = learner.update(batch.with_advantages(broken))
    assert result.skipped
    assert "loss" in result.reason
    assert "embedding.weight" in result.reason
    assert result.metrics.result() == {"optim/updates_skipped": 1}
    assert torch.equal(weights(learner), before)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in learner.optimizer.state().items())
    assert learner.version == 1
    after = learner.update(batch).metrics.result()
    assert after["optim/learning_rate"] == pytest.approx(0.005)  # the schedule counts the attempt
    assert learner.version == 2


CONSTANT = random_groups(rewards=[[1.0] * 4, [0.0] * 4, [0.7] * 4])


@pytest.mark.parametrize(
    ("parts", "is_empty"),
    [
        ({"kl_coef": 0.0}, True),
        ({"kl_coef": 0.0, "entropy_coef": 0.01}, False),
        ({"kl_coef": 0.1}, False),
        ({"kl_coef": 0.1, "untrained": True}, True),
        ({"kl_coef": 0.0, "entropy_coef": 0.01, "untrained": True}, True),
        ({"kl_coef": 0.0, "dtype": torch.float32, "compute_dtype": torch.bfloat16, "moments": "bfloat16"}, True),
    ],
    ids=["constant", "entropy bonus", "kl term", "no token, kl", "no token, entropy", "bfloat16"],
)
def test_an_update_without_any_gradient_may_be_left_out(parts: dict, is_empty: bool, tmp_path: Path) -> None:
    parts = {"learning_rate": 0.01, "weight_decay": 0.1, "schedule": "linear", "total_updates": 4, **parts}
    untrained = parts.pop("untrained", False)
    learner, resumed = (make_learner(skip_empty_updates=True, **parts) for _ in range(2))
    learner.update(finished(learner, GROUPS))
    before, changes = {name: tensor.clone() for name, tensor in learner.optimizer.state().items()}, learner.changes
    batch = finished(learner, CONSTANT)
    if untrained:
        batch = batch.having(loss_mask=torch.zeros_like(batch.loss_mask))
    result = learner.update(batch)
    said = result.metrics.result()
    assert (said["optim/updates"], said["optim/updates_empty"]) == (not is_empty, is_empty)
    assert not result.skipped
    assert learner.version == (1 if is_empty else 2)
    assert learner.changes > changes  # the schedule has gone on
    same = [torch.equal(tensor, before[name]) for name, tensor in learner.optimizer.state().items()]
    assert all(same) if is_empty else not any(same[:1])
    carried_over(learner, resumed, tmp_path)
    said = [each.update(finished(each, GROUPS)).metrics.result() for each in (learner, resumed)]
    assert said[0] == said[1]
    assert said[0]["optim/learning_rate"] == pytest.approx(0.005)
    assert torch.equal(weights(learner), weights(resumed))


def test_a_finite_loss_with_a_broken_gradient_is_skipped_too() -> None:
    class Spike(TinyLM):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            logits = super().forward(input_ids)
            return logits + 0.0 * (self.mix.bias - self.mix.bias.detach()).square().sum().sqrt()  # value 0, slope NaN

    learner = LearnerConfig().build(GenericModel(Spike()), Clipped(), Regularizer(KLPenalty(coef=0.0)))
    batch = finished(learner, GROUPS)
    assert bool(learner.accumulate(batch).loss.isfinite())
    result = learner.update(batch)
    assert result.skipped
    assert "mix.bias" in result.reason


def test_the_reference_is_a_frozen_copy_and_kl_starts_at_zero() -> None:
    learner = LearnerConfig(learning_rate=0.1).build(tiny_model(), Clipped(), Regularizer(KLPenalty(coef=0.1)))
    frozen = {name: tensor.clone() for name, tensor in learner.reference.state().items()}
    first = learner.update(finished(learner, GROUPS)).metrics.result()
    second = learner.update(finished(learner, GROUPS)).metrics.result()
    assert first["policy/kl"] == 0
    assert second["policy/kl"] > 0
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in learner.reference.state().items())
    assert not any(p.requires_grad for p in learner.reference.model.module.parameters())


def test_old_logprobs_are_those_of_the_first_pass_whatever_the_micro_batch() -> None:
    batch = collate(GROUPS)
    whole = old_logprobs(make_learner(), batch)
    assert whole.shape == batch.completion_ids.shape
    assert not whole.requires_grad
    assert bool((whole[~batch.existing()] == 0).all())
    torch.testing.assert_close(old_logprobs(make_learner(tokens_per_micro_batch=5), batch), whole, rtol=0, atol=1e-12)
    said = make_learner().update(finished(make_learner(), GROUPS).having(old_logprobs=whole)).metrics.result()
    assert said["policy/ratio"] == 1
    assert said["policy/ratio_max"] == 1


def test_mismatch_is_between_the_learners_first_pass_and_what_the_sampler_recorded() -> None:
    learner = make_learner()
    batch = finished(learner, GROUPS, old=False)
    gap = (old_logprobs(learner, batch) - batch.rollout_logprobs).abs()[batch.loss_mask]
    with_old = batch.having(old_logprobs=old_logprobs(learner, batch))
    with_recorded = batch.having(old_logprobs=batch.rollout_logprobs)
    for case in (batch, with_old, with_recorded):
        said = learner.accumulate(case).metrics.result()
        assert said["policy/mismatch"] == pytest.approx(float(gap.mean()))
        assert said["policy/mismatch_max"] == pytest.approx(float(gap.max()))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_saved_learner_goes_on_bit_for_bit(dtype: torch.dtype | None, tmp_path: Path) -> None:
    settings = {
        "dtype": torch.float32,
        "compute_dtype": dtype,
        "tied": True,
        "learning_rate": 0.01,
        "schedule": "cosine",
        "tokens_per_micro_batch": 15,
    }
    learner = make_learner(**settings)
    batch = finished(learner, GROUPS)
    for _ in range(2):
        learner.update(batch)
    resumed = make_learner(**settings)
    resumed.update(batch)
    carried_over(learner, resumed, tmp_path)
    assert resumed.version == 2
    for _ in range(2):
        assert learner.update(batch).metrics.result() == resumed.update(batch).metrics.result()
    ours, theirs = learner.optimizer.state(), resumed.optimizer.state()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(weights(learner), weights(resumed))
