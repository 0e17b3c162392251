"""A teacher in shards: the scores of one process, on any number of ranks."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.shards import batch_for, llama, make_learner, sharded
from fakes.tiny_policy import random_groups
from fakes.tolerance import assert_close
from oncurve.batching import collate
from oncurve.learner import LocalLearner
from oncurve.models import wrap
from oncurve.types import TrainBatch


def make(
    kind: str, dtype: torch.dtype | None = None, tokenizer: object = None, make: type[LocalLearner] = LocalLearner
) -> Any:
    """Taught by "another" model, or by "itself"."""
    model = wrap(llama())
    return make_learner(model, dtype, make, teacher=model if kind == "itself" else wrap(llama(seed=5)))


def read_otherwise() -> TrainBatch:
    """Rows whose teacher reads prompts of other lengths, so that its passes are not those of the policy."""
    groups = random_groups(count=4, size=4, seed=9)
    longer = [
        replace(group, prompt=replace(group.prompt, teacher_ids=(3,) * (2 + 9 * k))) for k, group in enumerate(groups)
    ]
    return collate(longer)


def scored(learner: Any) -> list[Tensor]:
    both = (collate(random_groups(count=4, size=4, seed=9)), read_otherwise())
    found = [learner.score(batch, frozenset({"teacher", "old"})) for batch in both]
    return [tensor for batch in found for tensor in (batch.teacher_logprobs, batch.old_logprobs)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "dtype"), [("another", 2, None), ("another", 4, torch.bfloat16), ("itself", 2, None)]
)
def test_a_teacher_says_what_it_says_in_one_process(kind: str, ranks: int, dtype: torch.dtype | None) -> None:
    one = make(kind, dtype)
    batch = batch_for(one)
    with sharded(ranks, make=partial(make, kind), dtype=dtype) as learner:
        for step in range(2):
            found, right = scored(learner), scored(one)
            for mine, wanted in zip(found, right, strict=True):
                assert_close(mine, wanted, dtype)
            if kind == "itself":
                assert torch.equal(found[0], found[1])  # where it reads the same prompts
            if not step:
                first = found
                learner.update(batch)
                one.update(batch)
        assert torch.equal(first[0], found[0]) == (kind == "another")
        assert not torch.equal(first[1], found[1])


def test_no_rank_keeps_a_teacher_whole() -> None:
    teacher = wrap(llama(seed=5))
    with sharded(1, make=partial(make_taught, teacher)) as learner:
        assert all(parameter.is_meta for parameter in teacher.module.parameters())
        assert not any(parameter.requires_grad for parameter in learner.local._teacher.model.module.parameters())


def make_taught(teacher: Any, tokenizer: object = None, make: type[LocalLearner] = LocalLearner) -> Any:
    return make_learner(wrap(llama()), None, make, teacher=teacher)
