from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fakes.learning import carried_over, finished, gradient, make_learner, old_logprobs, with_reference
from fakes.tiny_policy import TinyLM, random_groups, tiny_model
from oncurve.base.errors import CheckpointError, ConfigError, ModelError
from oncurve.batching import collate
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models.generic import GenericModel

GROUPS = random_groups()


def weights(learner: LocalLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in learner.weights().local().module.parameters()])


def test_settings_have_the_vetted_defaults() -> None:
    config = LearnerConfig()
    assert (config.learning_rate, config.betas, config.weight_decay, config.max_grad_norm) == (1e-6, (0.9, 0.999), 0, 1)
    assert (config.ppo_epochs, config.minibatches, config.schedule, config.old_logprobs) == (
        1,
        1,
        "constant",
        "recompute",
    )


@pytest.mark.parametrize(
    "wrong",
    [{"learning_rate": -1.0}, {"ppo_epochs": 0}, {"schedule": "exponential"}, {"betas": (0.9, 1.0)}, {"lr": 1e-6}],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LearnerConfig(**wrong)


def test_greedy_temperature_cannot_be_trained_on() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        make_learner(temperature=0.0)


def test_a_decaying_schedule_needs_to_know_the_end() -> None:
    with pytest.raises(ConfigError, match="how many updates"):
        make_learner(schedule="cosine", total_updates=0)


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


def test_accumulating_leaves_the_weights_alone() -> None:
    learner = make_learner()
    before = weights(learner)
    learner.accumulate(finished(learner, GROUPS))
    assert torch.equal(weights(learner), before)
    assert learner.version == 0
    assert all(parameter.grad is not None for parameter in learner.weights().local().module.parameters())


def test_an_update_after_an_accumulation_forgets_it() -> None:
    learner = make_learner()
    batch = finished(learner, GROUPS)
    once = gradient(learner, batch).clone()
    assert torch.equal(gradient(learner, batch), once)


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


def test_the_full_kl_starts_at_zero_too() -> None:
    model = tiny_model(torch.float32)
    learner = LearnerConfig().build(model, Clipped(), Regularizer(KLPenalty(coef=0.1, estimator="full")))
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] == 0


def test_without_a_kl_term_there_is_no_reference(tmp_path: Path) -> None:
    learner = make_learner(kl_coef=0.0)
    batch = collate(GROUPS)
    assert with_reference(learner, batch) is batch
    assert learner.reference is None
    with pytest.raises(CheckpointError, match="reference"):
        carried_over(make_learner(), learner, tmp_path)


def test_a_loaded_reference_is_the_stored_one(tmp_path: Path) -> None:
    learner = LearnerConfig().build(tiny_model(), Clipped(), Regularizer(KLPenalty(coef=0.1)))
    carried_over(make_learner(), learner, tmp_path)
    batch = collate(GROUPS)
    given = with_reference(learner, batch).ref_logprobs
    assert torch.equal(given, with_reference(make_learner(temperature=1.0), batch).ref_logprobs)


def test_the_policy_given_as_its_own_reference_is_copied_not_frozen() -> None:
    model = tiny_model()
    regularizer = Regularizer(KLPenalty(coef=0.1))
    learner = LearnerConfig(learning_rate=0.1).build(model, Clipped(), regularizer, reference=model)
    said = [learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] for _ in range(2)]
    assert said[0] == 0 < said[1]


def test_a_given_reference_computes_in_the_policys_dtype() -> None:
    settings = {"dtype": torch.bfloat16, "reference": tiny_model(torch.float32)}
    learner = LearnerConfig().build(tiny_model(torch.float32), Clipped(), Regularizer(KLPenalty(coef=0.1)), **settings)
    assert learner.update(finished(learner, GROUPS)).metrics.result()["policy/kl"] == 0


def test_a_model_that_cannot_be_copied_is_named() -> None:
    class Uncopyable(TinyLM):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("it holds a file handle")

    with pytest.raises(ModelError, match=r"Uncopyable.*file handle.*ref_model"):
        LearnerConfig().build(GenericModel(Uncopyable()), Clipped(), Regularizer(KLPenalty()))


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


def test_an_untrained_batch_is_a_step_with_gradient_zero() -> None:
    learner = make_learner()
    result = learner.update(finished(learner, random_groups(rewards=[[None] * 4] * 3)))
    said = result.metrics.result()
    assert not result.skipped
    assert (said["policy/loss"], said["optim/grad_norm"], learner.version) == (0, 0, 1)


def test_statistics_that_are_zero_in_dead_rows_count_them() -> None:
    learner = make_learner(kl_coef=0.0)
    alive, dead = random_groups(1, seed=3), random_groups(2, seed=4, rewards=[[1.0] * 4] * 2)
    alone = learner.accumulate(finished(learner, alive)).metrics.result()
    both = learner.accumulate(finished(learner, alive + dead)).metrics.result()
    share = collate(alive).token_count / collate(alive + dead).token_count
    for key in ("policy/clip_low", "policy/clip_high"):
        assert 0 < both[key] == pytest.approx(alone[key] * share)


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


def test_masters_are_in_full_precision_whatever_the_model_computes_in() -> None:
    learner = make_learner(dtype=torch.float32, compute_dtype=torch.bfloat16, tied=True)
    masters = learner.optimizer.masters
    assert list(masters) == ["embedding.weight", "mix.weight", "mix.bias"]
    exact = dict(tiny_model(torch.float32, tied=True).module.named_parameters())
    assert all(torch.equal(master, exact[name]) for name, master in masters.items())
    assert not any(master.requires_grad for master in masters.values())


def test_bfloat16_gradients_point_where_float32_ones_do() -> None:
    exact = make_learner(dtype=torch.float32)
    half = make_learner(dtype=torch.float32, compute_dtype=torch.bfloat16, tokens_per_micro_batch=15)
    right, given = gradient(exact, finished(exact, GROUPS)), gradient(half, finished(half, GROUPS))
    assert float(nn.functional.cosine_similarity(given, right, dim=0)) > 0.995
