"""A learner in shards: the update of one process, within rounding, on any number of ranks; checkpoints of any."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.messages import message_of
from fakes.shards import batch_for, llama, make_llama, sharded, whole_state
from fakes.waiting import errors_with
from oncurve.base.errors import LostStateError
from oncurve.cluster.sharding.shard_learner import ShardLearner
from oncurve.durable import StorageError
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.models import wrap


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_leave_out_an_update_without_a_gradient(tmp_path: Path, ranks: int) -> None:
    states = []
    with sharded(ranks, skip_empty_updates=True) as learner:
        batch = batch_for(learner)
        for mask in (batch.loss_mask, torch.zeros_like(batch.loss_mask)):
            learner.update(batch.having(loss_mask=mask))
            states.append(whole_state(tmp_path, json.loads(json.dumps(learner.save(tmp_path)))))
        assert learner.version == 1
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def make_stored_in_bfloat16(tokenizer: object = None, make: type[LocalLearner] = LocalLearner) -> Any:
    objective, regularizer = OBJECTIVE_KINDS["clipped"](), Regularizer(KLPenalty(coef=0.0), 0.0)
    model = wrap(llama().to(torch.bfloat16))
    return LearnerConfig(learning_rate=1e-6).build(model, objective, regularizer, make=make, dtype=torch.bfloat16)


def test_small_updates_of_weights_that_are_stored_in_bfloat16_are_kept_in_float32() -> None:
    one = make_stored_in_bfloat16()
    batch = batch_for(one)
    one.update(batch)
    with sharded(1, make=make_stored_in_bfloat16) as learner:
        before = {name: learner.local.whole_master(name) for name in one.optimizer.trained}
        learner.update(batch)
        for name, right in one.optimizer.masters.items():
            now = learner.local.whole_master(name)
            assert now.dtype == torch.float32
            assert torch.equal(before[name], before[name].bfloat16().float())
            assert 0 < float((now - before[name]).abs().max()) < 2e-6
            assert float((now - right).abs().max()) < 4e-6


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_host_s_memory_holds_the_same_bits(ranks: int) -> None:
    found = []
    for offload in (False, True):
        with sharded(ranks, dtype=torch.bfloat16, offload=offload) as learner:
            assert learner.local.offload is offload
            for seed in range(2):
                assert not learner.update(batch_for(learner, seed)).skipped
            found.append([tensor.clone() for tensor in learner.weights().model.module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_that_the_disk_refuses_is_no_loss_of_a_rank(
    tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the folder as it was given, whichever rank met it."""
    monkeypatch.chdir(tmp_path.parent)
    batches = [batch_for(make_llama(), seed) for seed in range(2)]
    (tmp_path / f"learner-{rank:03d}-of-002.safetensors").mkdir()
    (tmp_path / "there").mkdir()
    with sharded(2) as learner:
        learner.update(batches[0])
        name = f"{tmp_path.name}/learner-{rank:03d}-of-002.safetensors"
        assert message_of(StorageError, learner.save, Path(tmp_path.name)).startswith(f"{name} cannot be written: ")
        learner.update(batches[1])
        state = whole_state(tmp_path / "there", learner.save(tmp_path / "there"))
    (tmp_path / "undisturbed").mkdir()
    with sharded(2) as learner:
        [learner.update(batch) for batch in batches]
        whole = whole_state(tmp_path / "undisturbed", learner.save(tmp_path / "undisturbed"))
    assert all(torch.equal(state[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_an_error_in_a_rank_is_said_in_a_sentence_and_where_it_began_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once: the other ranks notice that their connections close, which is no cause."""
    with sharded(3, make=make_failing) as learner, pytest.raises(LostStateError) as raised:
        learner.update(batch_for(learner))
    lost = "a rank was lost, and its shard of the model with it: rank 1: ZeroDivisionError: no luck at all"
    assert raised.value.cause == lost
    said = errors_with("no luck\n  at all\n", capsys)  # what processes say comes by a thread
    assert said.count("Traceback (most recent call last)") == 1
    assert "in apply\n" in said


class Failing(ShardLearner):
    def apply(self, accumulated: Any) -> Any:
        if self.rank == 1:
            raise ZeroDivisionError("no luck\n  at all")
        return super().apply(accumulated)


def make_failing(tokenizer: object = None, make: Any = None) -> Any:
    return make_llama(make=Failing)
