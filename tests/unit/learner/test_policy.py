from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fakes.learning import carried_over, finished, gradient, make_learner, old_logprobs
from fakes.tiny_policy import TinyLM, random_groups, tiny_model
from oncurve.base.errors import ConfigError
from oncurve.batching import collate, shards
from oncurve.cluster.ranks import GradientShards
from oncurve.config import load_config
from oncurve.learner import LearnerConfig, LocalLearner, state_of, take_over
from oncurve.learner.budget import Budget
from oncurve.losses import Clipped, KLPenalty, Regularizer
from oncurve.models.generic import GenericModel
from oncurve.models.loading.weights import loaded_from
from oncurve.types import TrainBatch
from oracles.plain_shards import gradient_in_shards

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


@pytest.mark.parametrize(("ratio", "updates", "warmup"), [(0.1, 100, 10), (0.03, 100, 3), (0.1, 15, 2), (0.0, 50, 0)])
def test_the_share_is_rounded_up_to_a_whole_update(ratio: float, updates: int, warmup: int) -> None:
    assert LearnerConfig(warmup_ratio=ratio).warmup(updates) == warmup
    assert LearnerConfig(warmup_steps=7).warmup(updates) == 7


def test_it_needs_the_number_of_updates() -> None:
    def learner(total: int) -> object:
        parts = (loaded_from(TinyLM()).model, Clipped(), Regularizer(KLPenalty(coef=0.0)))
        return LearnerConfig(warmup_ratio=0.1).build(*parts, total_updates=total)

    assert learner(10) is not None
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio = 0\.1 needs to know how many updates"):
        learner(0)


def test_both_in_one_place_are_refused_and_the_later_layer_counts(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio: learner\.warmup_steps says it in another way"):
        load_config(None, ["learner.warmup_steps=3", "learner.warmup_ratio=0.1"])
    with pytest.raises(ConfigError, match=r"learner\.warmup_ratio: learner\.warmup_steps says how long"):
        load_config(settings={"learner": LearnerConfig(warmup_steps=3, warmup_ratio=0.1)})
    recipe = tmp_path / "a.toml"
    recipe.write_text("[learner]\nwarmup_steps = 3\n")
    learner = load_config(recipe, ["learner.warmup_ratio=0.5"])[0].learner
    assert (learner.warmup_steps, learner.warmup_ratio) == (0, 0.5)


class Small:
    """A device that holds so many tokens of hidden states at a time; `ppo_epochs`: what each forward pass asked for."""

    def __init__(self, learner: LocalLearner, holds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[int] = []
        model, inner = learner.weights().local(), learner.weights().local().completion_hidden

        def completion_hidden(prompts: list[Tensor], group_ids: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
            asked = int(lengths.sum()) + sum(len(prompt) for prompt in prompts)
            self.passes.append(asked)
            if asked > holds:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB\nmore")
            return inner(prompts, group_ids, ids, lengths)

        monkeypatch.setattr(model, "completion_hidden", completion_hidden)


def test_the_update_is_done_again_from_its_start_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_learner()
    right = gradient(plain, finished(plain, GROUPS))
    learner = make_learner()
    batch = finished(learner, GROUPS)
    small = Small(learner, 20, monkeypatch)
    accumulated = learner.accumulate(batch)
    given = torch.cat([part.flatten() for part in learner.optimizer.gradients().values()])
    torch.testing.assert_close(given, right, rtol=1e-10, atol=1e-12)
    assert small.passes[0] > 20
    assert accumulated.metrics.result()["optim/out_of_memory"] >= 1
    assert learner.budget.tokens <= small.passes[0] // 2
    small.passes.clear()
    assert "optim/out_of_memory" not in learner.accumulate(batch).metrics.result()
    assert max(small.passes) <= 20


@pytest.mark.parametrize("enough", [True, False])
def test_decoding_gives_back_its_memory_before_a_pass_is_halved(monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    learner = make_learner()
    batch, model = finished(learner, GROUPS), learner.weights().local()
    small, kept = Small(learner, 1000 if enough else 20, monkeypatch), [True]
    inner = model.completion_hidden

    def completion_hidden(*inputs: Any) -> Tensor:
        if kept:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(*inputs)

    monkeypatch.setattr(model, "completion_hidden", completion_hidden)
    learner.budget = Budget(16384, lambda: bool(kept) and kept.pop())
    assert ("optim/out_of_memory" in learner.accumulate(batch).metrics.result()) != enough
    assert (learner.budget.halved == 0) == enough
    kept.append(True)  # another rollout
    small.passes.clear()
    assert "optim/out_of_memory" not in learner.accumulate(batch).metrics.result()
    assert not kept


def test_an_embedding_is_sparse_within_an_update_only() -> None:
    learner = make_learner(dtype=torch.float32, compute_dtype=torch.bfloat16, tied=True)
    embedding = learner.weights().local().module.embedding
    assert isinstance(embedding, nn.Embedding)
    kinds: list[bool] = []
    embedding.register_forward_hook(lambda module, *_: kinds.append(module.sparse))
    learner.update(finished(learner, GROUPS))
    assert set(kinds) == {True}
    assert not embedding.sparse
    old_logprobs(learner, collate(GROUPS))
    assert kinds[-1] is False


DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def learner_of(dtype: torch.dtype, **settings: object) -> LocalLearner:
    given = torch.float64 if dtype == torch.float64 else torch.float32
    return make_learner(dtype=given, compute_dtype=dtype, **settings)


def batch_of(learner: LocalLearner, count: int = 5, seed: int = 0) -> TrainBatch:
    return finished(learner, random_groups(count=count, size=4, seed=seed))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 64])
def test_shards_are_runs_of_rows_of_about_the_same_cost(count: int) -> None:
    batch = batch_of(learner_of(torch.float64))
    pieces = shards(batch, count)
    assert len(pieces) == count
    there = [piece for piece in pieces if piece is not None]
    assert torch.equal(torch.cat([piece.lengths for piece in there]), batch.lengths)
    ids = [
        row[:length].tolist()
        for piece in there
        for row, length in zip(piece.completion_ids, piece.lengths, strict=True)
    ]
    assert ids == [row[:length].tolist() for row, length in zip(batch.completion_ids, batch.lengths, strict=True)]
    sizes = torch.bincount(batch.group_ids)
    costs = [
        length + len(batch.prompts[group]) / int(sizes[group])
        for length, group in zip(batch.lengths.tolist(), batch.group_ids.tolist(), strict=True)
    ]
    begin = 0
    for piece in pieces:
        rows = 0 if piece is None else piece.size
        mine = costs[begin : begin + rows]
        assert sum(mine) <= sum(costs) / count + (mine[0] / 2 + mine[-1] / 2 if mine else 0) + 1e-9
        begin += rows


def in_shards(learner: LocalLearner, batch: TrainBatch, count: int) -> GradientShards:
    rows = learner.rows_of(batch)
    assert rows is not None
    return GradientShards(learner, shards(rows, count))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 8, 32])  # of 20 rows: the last has shards without rows
def test_the_gradient_has_the_bits_of_the_plain_tree(count: int, dtype: torch.dtype) -> None:
    learner = learner_of(dtype, tokens_per_micro_batch=12)
    cut = in_shards(learner, batch_of(learner), count)
    right = gradient_in_shards(learner, cut.pieces)
    cut.summed()
    for name, part in learner.optimizer.gradients().items():
        assert torch.equal(part, right[name]), name


def test_loss_and_statistics_are_those_of_the_whole_batch() -> None:
    learner = learner_of(torch.float64, kl_coef=0.0)
    groups = random_groups(count=3, size=4, rewards=[[1.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0]])
    batch = finished(learner, groups)  # the second group has no gradient
    whole = learner.accumulate(batch)
    cut = in_shards(learner, batch, 4)
    shared = cut.joined(batch, cut.summed())
    assert float(shared.loss) == pytest.approx(float(whole.loss), rel=1e-12)
    right = whole.metrics.result()
    assert shared.metrics.result() == {key: pytest.approx(value, rel=1e-12) for key, value in right.items()}


@pytest.mark.parametrize("settings", [{}, {"masters": "split", "moments": "bfloat16"}], ids=["whole", "lean"])
def test_a_learner_that_takes_over_anothers_state_goes_on_to_the_same_bits(settings: dict[str, str]) -> None:
    first, second = (learner_of(torch.bfloat16, learning_rate=0.01, **settings) for _ in range(2))
    for seed in range(3):
        first.update(batch_of(first, seed=seed))
        first.move_reference(0.5)
    second.update(batch_of(second, seed=9))  # elsewhere
    record, tensors = state_of(first)
    take_over(second, record, {name: tensor.clone() for name, tensor in tensors.items()})
    for seed in (4, 5):
        results = [learner.update(batch_of(learner, seed=seed)) for learner in (first, second)]
        assert results[0].metrics.result() == results[1].metrics.result()
    assert first.changes == second.changes
    for name, tensor in state_of(first)[1].items():
        assert torch.equal(tensor, state_of(second)[1][name]), name
