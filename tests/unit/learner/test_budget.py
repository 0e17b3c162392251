"""Out of memory on a device: the pass is done again in smaller micro-batches, and they stay small."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.learning import finished, gradient, make_learner, old_logprobs
from fakes.tiny_policy import random_groups
from oncurve.batching import collate
from oncurve.errors import TrainingError
from oncurve.learner import LocalLearner

GROUPS = random_groups()


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


def test_a_row_that_does_not_fit_alone_stops_the_run_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner()
    batch = finished(learner, GROUPS)
    Small(learner, 2, monkeypatch)
    with pytest.raises(TrainingError, match=r"one completion at a time.*3\.00 GiB\. Set learner\.gradient_checkpoint"):
        learner.update(batch)


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


@pytest.mark.parametrize("tied", [False, True])
def test_rows_looked_up_do_not_pile_up_over_micro_batches(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(tied=tied, tokens_per_micro_batch=6)
    embedding = learner.weights().local().module.embedding
    backward, held = learner._backward, []

    def watched(*arguments: Any) -> Tensor:
        found = embedding.weight.grad
        held.append(0 if found is None else found._nnz())
        return backward(*arguments)

    monkeypatch.setattr(learner, "_backward", watched)
    learner.accumulate(finished(learner, [*GROUPS, *GROUPS, *GROUPS]))
    assert len(held) > 3
    assert max(held) <= (0 if tied else len(embedding.weight))
