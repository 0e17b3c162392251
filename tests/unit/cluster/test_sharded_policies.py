"""Learners in shards make the updates of one process, with all parameters, with some, and with an adapter."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.learning import gradient, relative_error
from fakes.shards import batch_for, llama, make_learner, sharded, whole_state
from fakes.tiny_policy import random_groups
from fakes.tolerance import assert_close
from oncurve.base.errors import CheckpointError
from oncurve.batching import collate
from oncurve.durable import read_tensors
from oncurve.learner import LocalLearner
from oncurve.models import CausalModel, wrap

PLAIN = collate(random_groups(count=4, size=4, seed=9))


def policy(kind: str, dtype: torch.dtype = torch.float32) -> CausalModel:
    """Return a model with an adapter that is "new" or "trained", or one that trains "all", "tied" or "some" weights."""
    module = llama(tied=kind == "tied").to(dtype)
    if kind in ("new", "trained"):
        from fakes.adapted import adapted  # with PEFT, which the other kinds need not wait for

        return adapted(module, trained=kind == "trained")
    if kind == "some":
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not any(part in name for part in ("embed_tokens", "layers.0", "o_proj")))
    return wrap(module)


def make(
    kind: str,
    dtype: torch.dtype | None = None,
    tokenizer: object = None,
    make: type[LocalLearner] = LocalLearner,
    given: torch.dtype = torch.float32,
    **settings: Any,
) -> Any:
    return make_learner(policy(kind, given), dtype, make, **settings)


def scored(learner: Any, what: str = "reference") -> Tensor:
    found = learner.score(PLAIN, frozenset({what}))
    return found.ref_logprobs if what == "reference" else found.old_logprobs


def saved(learner: Any, folder: Path) -> Any:
    folder.mkdir()
    return json.loads(json.dumps(learner.save(folder)))


def first_moments(folder: Path, record: Any, one: Any) -> Tensor:
    found = whole_state(folder, record)
    return torch.cat([found[f"moment1.{name}"].flatten().double() for name in one.optimizer.trained])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "given", "near"),
    [
        ("all", 2, torch.float32, 2e-6),
        *((kind, 4, torch.float32, 2e-6) for kind in ("new", "some")),
        ("trained", 4, torch.float64, 1e-12),
    ],
)
def test_the_gradient_of_ranks_is_that_of_one_process_and_frozen_weights_have_none(
    tmp_path: Path, kind: str, ranks: int, given: torch.dtype, near: float
) -> None:
    one = make(kind, given=given)
    batch = batch_for(one)
    right = gradient(one, batch)
    with sharded(ranks, make=partial(make, kind), given=given) as learner:
        mine = batch_for(learner)
        for name in ("old_logprobs", "ref_logprobs", "entropy"):
            assert_close(getattr(mine, name), getattr(batch, name))
        adapter = kind in ("new", "trained")
        assert (learner.local.reference.model is learner.local.model) == adapter  # no second model
        assert not adapter or torch.equal(mine.ref_logprobs, mine.old_logprobs)
        metrics = learner.update(batch).metrics.result()
        record = saved(learner, tmp_path / "saved")
        held = sum(tensor.numel() for tensor in learner.local.optimizer.state().values())
    assert set(record["shapes"]) == set(one.optimizer.trained)
    assert held < 3 * (one.optimizer.trained_count / ranks + 32 * len(one.optimizer.trained))
    assert relative_error(first_moments(tmp_path / "saved", record, one) / (1 - 0.9), right) < near
    assert metrics["optim/grad_norm"] == pytest.approx(float(right.norm()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype", "settings", "near"),
    [
        ("new", None, {"max_grad_norm": 0.1, "gradient_checkpointing": True}, 2e-6),
        ("trained", torch.bfloat16, {}, 2e-2),
        ("some", None, {}, 2e-6),
        ("tied", None, {"max_grad_norm": 0.1, "gradient_checkpointing": True}, 2e-6),
        ("all", torch.bfloat16, {}, 2e-2),
    ],
)
def test_a_checkpoint_of_four_ranks_goes_on_with_one_and_two(
    tmp_path: Path, kind: str, dtype: torch.dtype | None, settings: dict[str, Any], near: float
) -> None:
    one = make(kind, dtype, **settings)
    batches = [batch_for(one, seed) for seed in range(4)]
    for batch in batches:
        one.update(batch)
    one.export(tmp_path / "right")
    with sharded(4, make=partial(make, kind), dtype=dtype, **settings) as learner:
        for batch in batches[:2]:
            assert not learner.update(batch).skipped
        record = saved(learner, tmp_path / "four")
        weights = {name: tensor.clone() for name, tensor in learner.weights().model.module.named_parameters()}
    assert {weights[name].dtype for name in weights} == {dtype or torch.float32}
    if kind in ("new", "trained"):
        assert record["base"] == one.optimizer._base.digest
    for ranks in (1, 2):
        with sharded(ranks, make=partial(make, kind), dtype=dtype, **settings) as learner:
            learner.load(tmp_path / "four", record)
            again = saved(learner, tmp_path / f"again-{ranks}")
            written, read = whole_state(tmp_path / "four", record), whole_state(tmp_path / f"again-{ranks}", again)
            assert all(torch.equal(read[name], tensor) for name, tensor in written.items())
            now = dict(learner.weights().model.module.named_parameters())
            assert all(torch.equal(now[name], tensor) for name, tensor in weights.items())
            for batch in batches[2:]:
                learner.update(batch)
            learner.export(tmp_path / f"model-{ranks}")
        for file in (
            "model.safetensors",
            *(["adapter/adapter_model.safetensors"] if kind in ("new", "trained") else []),
        ):
            exported = read_tensors(tmp_path / f"model-{ranks}" / file)
            for name, right in read_tensors(tmp_path / "right" / file).items():
                assert exported[name].dtype == right.dtype == torch.float32
                error = float((exported[name] - right).abs().max())
                assert error <= near * float(right.abs().max().clamp(min=1)), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "alpha", "dtype"),
    [
        ("all", 1.0, None),
        ("all", 0.3, torch.bfloat16),
        ("new", 0.3, None),
        ("new", 1.0, torch.bfloat16),
        ("trained", 0.3, torch.bfloat16),
        ("some", 0.3, None),
    ],
)
def test_a_reference_that_moves_is_that_of_one_process_and_is_resumed(
    tmp_path: Path, kind: str, alpha: float, dtype: torch.dtype | None
) -> None:
    def apart(first: Tensor, second: Tensor) -> float:
        return float((first - second).abs().mean())

    one = make(kind, dtype)
    batches = [batch_for(one, seed) for seed in range(2)]
    still = scored(one)
    for batch in batches:
        one.update(batch)
        one.move_reference(alpha)
    with sharded(2, make=partial(make, kind), dtype=dtype) as learner:
        for batch in batches:
            learner.update(batch)
            before = scored(learner, "old")
            learner.move_reference(alpha)
            assert torch.equal(scored(learner, "old"), before)
        moved, changes = scored(learner), learner.changes
        assert alpha < 1 or torch.equal(moved, before)
        record = saved(learner, tmp_path / "two")
    near = (1e-3 if dtype is None else 0.2) * apart(moved, still)
    assert apart(moved, still) > 0.001
    assert apart(moved, scored(one)) < near
    with sharded(1, make=partial(make, kind), dtype=dtype) as learner:
        learner.load(tmp_path / "two", record)
        assert learner.changes == changes
        assert_close(scored(learner), moved)
        learner.move_reference(alpha)
        one.move_reference(alpha)
        assert apart(scored(learner), scored(one)) < near


@pytest.mark.parametrize("kind", ["new", "some"])
def test_a_checkpoint_on_other_frozen_weights_is_refused(tmp_path: Path, kind: str) -> None:
    with sharded(1, make=partial(make, kind)) as learner:
        record = saved(learner, tmp_path / "saved")
    said = pytest.raises(CheckpointError, match=r"frozen weights.*have changed")
    with sharded(1, make=partial(make_other, kind)) as learner, said:
        learner.load(tmp_path / "saved", record)


def make_other(kind: str, tokenizer: object = None, make: type[LocalLearner] = LocalLearner) -> Any:
    model = policy(kind)
    with torch.no_grad():
        model.module.get_input_embeddings().weight.add_(1.0)
    return make_learner(model, None, make)
