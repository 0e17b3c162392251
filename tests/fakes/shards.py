"""A small policy with a KL term, its learner in shards on processes of this machine, and batches for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fakes.architectures import SMALL
from fakes.tiny_policy import random_groups
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import HostCluster
from oncurve.cluster.sharding.shard_learner import load_part
from oncurve.cluster.sharding.sharded import ShardedLearner
from oncurve.learner import Learner, LearnerConfig, LocalLearner
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer
from oncurve.models import CausalModel, wrap
from oncurve.types import TrainBatch

SCORED = frozenset({"old", "reference", "entropy"})
SETTINGS = {"learning_rate": 0.01, "max_grad_norm": 0.0, "tokens_per_micro_batch": 24, "epsilon": 1e-3}
"""ε: AdamW divides by √v + ε, and at 1e-8 the rounding of a gradient near 0 would decide a step."""


def llama(tied: bool = False, seed: int = 3) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=29, tie_word_embeddings=tied, max_position_embeddings=64, **SMALL))


def make_llama(
    dtype: torch.dtype | None = None,
    tied: bool = False,
    tokenizer: object = None,
    make: type[LocalLearner] = LocalLearner,
    **settings: Any,
) -> Any:
    return make_learner(wrap(llama(tied)), dtype, make, **settings)


def make_learner(
    model: CausalModel,
    dtype: torch.dtype | None,
    make: type[LocalLearner],
    teacher: CausalModel | None = None,
    **settings: Any,
) -> Any:
    return LearnerConfig(**{**SETTINGS, **settings}).build(
        model,
        OBJECTIVE_KINDS["clipped"](),
        Regularizer(KLPenalty(coef=0.1), 0.01),
        make=make,
        teacher=teacher,
        temperature=0.7,
        total_updates=10,
        dtype=dtype,
    )


@contextmanager
def sharded(
    ranks: int, make: Any = make_llama, silence: float = 20.0, offload: bool = False, **settings: Any
) -> Iterator[ShardedLearner]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    cluster = HostCluster(
        learner_ranks=ranks, sharding="fsdp", offload=offload, silence_seconds=silence, wait_seconds=300.0
    )
    learner = cluster.learner(partial(make, **settings))
    assert isinstance(learner, ShardedLearner)
    try:
        yield learner
    finally:
        learner.close()
        torch.set_num_threads(before)


def batch_for(learner: Learner, seed: int = 0, count: int = 4) -> TrainBatch:
    batch = learner.score(collate(random_groups(count=count, size=4, seed=seed)), SCORED)
    batch = batch.with_advantages(GroupAdvantage()(batch))
    return batch.with_weights(AGGREGATION_KINDS["token-mean"]()(batch))


def whole_state(folder: Path, record: Any) -> dict[str, Tensor]:
    names = {f"{kind}.{n}": s for n, s in record["shapes"].items() for kind in ("master", "moment1", "moment2")}
    return load_part(folder, record["ranks"], names, 0, 1)
