"""The memory of a rank in shards: what it holds falls with the number of ranks, from its start on."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from bench.cluster.memory import memory_of_ranks, process_memory

from fakes.tiny_policy import random_groups
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import HostCluster
from oncurve.cluster.sharding.divided import Outline
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap

MIB = 2**20


def llama(layers: int, hidden: int) -> CausalModel:
    from fakes.shrunk import shrunk

    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "head_dim": hidden // 2}
    return wrap(shrunk("llama", vocab_size=29, num_hidden_layers=layers, num_attention_heads=2, **sizes))


def make(model: CausalModel, tokenizer: object = None, make: type[LocalLearner] = LocalLearner) -> Any:
    regularizer = Regularizer(KLPenalty(coef=0.0), 0.0)
    return LearnerConfig(gradient_checkpointing=True).build(model, OBJECTIVE_KINDS["clipped"](), regularizer, make=make)


def peaks(ranks: int, layers: int, hidden: int) -> list[list[int]]:
    """Bytes of each rank's own memory: the peak of the start, and the larger peak of two updates.

    Rank 0 is a new process, so that nothing that other tests have freed is used again uncounted; of it what it has in
    addition to its imports.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as new:
        return new.submit(peaks_here, ranks, layers, hidden).result(timeout=600)


def peaks_here(ranks: int, layers: int, hidden: int) -> list[list[int]]:
    own = process_memory()["now"]
    torch.set_num_threads(1)
    cluster = HostCluster(learner_ranks=ranks, sharding="fsdp", wait_seconds=300.0)
    learner: Any = cluster.learner(partial(make, llama(layers, hidden)))
    try:
        start = memory_of_ranks()
        batch = learner.score(collate(random_groups(count=4, size=4, seed=0)), frozenset({"old"}))
        batch = batch.with_advantages(GroupAdvantage()(batch))
        batch = batch.with_weights(AGGREGATION_KINDS["token-mean"]()(batch))
        memory_of_ranks()
        for _ in range(2):
            assert not learner.update(batch).skipped
        found = memory_of_ranks()
    finally:
        learner.close()
    bases = [own] + [0] * (ranks - 1)
    return [[one["peak"] - base for one, base in zip(each, bases, strict=True)] for each in (start, found)]


def sent_over(made: Outline) -> tuple[Any, int]:
    """What another process gets of it, and its bytes on the way."""
    sent = pickle.dumps(made)
    return pickle.loads(sent), len(sent)  # noqa: S301 - its own


@pytest.mark.slow
@pytest.mark.skipif(not process_memory()["now"], reason="this system does not say what memory is a process's own")
def test_the_peak_of_a_rank_falls_with_the_number_of_ranks() -> None:
    layers, hidden = 8, 512
    parameters = sum(parameter.numel() for parameter in llama(layers, hidden).module.parameters())
    layer = parameters / layers
    empty = max(peaks(2, 1, 16)[1][1:])  # of a rank whose model is next to nothing
    _, (one,) = peaks(1, layers, hidden)
    started, four = peaks(4, layers, hidden)
    others, starts = max(four[1:]) - empty, max(started[1:]) - empty
    assert one > 16 * parameters  # the shard with gradient and moments, of the whole
    assert others < 0.5 * one, f"{others / MIB:.0f} of {one / MIB:.0f} MiB"
    assert others < 16 * parameters / 4 + 6 * 4 * layer + 48 * MIB
    assert four[0] < 0.6 * one  # rank 0 has the whole model in addition
    assert starts < 4 * parameters / 4 + 2 * 4 * layer + 48 * MIB  # never the whole


def test_a_recipe_for_ranks_has_the_shapes_of_a_model_and_no_weights() -> None:
    model = llama(2, 64)
    shapes = {name: tensor.shape for name, tensor in model.module.named_parameters()}
    size = sum(parameter.nbytes for parameter in model.module.parameters())
    recipe, sent = sent_over(Outline(partial(make, model)))
    assert sent < 0.5 * size
    found = recipe.args[0].module
    assert {name: tensor.shape for name, tensor in found.named_parameters()} == shapes
    assert all(parameter.is_meta for parameter in found.parameters())
    assert not any(buffer.is_meta for buffer in found.buffers())
