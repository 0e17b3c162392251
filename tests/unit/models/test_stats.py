"""The chunked head: the same numbers and gradients as all logits at once, without ever having them."""

import pytest
import torch

from fakes.architectures import RAGGED, VOCABULARY, fast_model
from fakes.tiny_policy import TinyLM
from oncurve.models import GenericModel, token_stats
from oncurve.models.head import stats as stats_of_tokens
from oncurve.types import TrainBatch

EVERYTHING = frozenset({"entropy", "full_kl"})


def batch_of(rows=RAGGED, **stats):
    count, width = rows.completion_ids.shape
    mask = torch.arange(width)[None, :] < rows.lengths[:, None]
    return TrainBatch(
        completion_ids=torch.where(mask, rows.completion_ids, 0),
        lengths=rows.lengths,
        loss_mask=mask,
        valid=torch.ones(count, dtype=torch.bool),
        group_ids=rows.group_ids,
        prompts=rows.prompts,
        rewards=torch.zeros(count, dtype=torch.float64),
        **stats,
    )


def hidden_of(model, batch):
    return model.completion_hidden(batch.prompts, batch.group_ids, batch.completion_ids, batch.lengths)


def with_reference(batch, reference):
    with torch.no_grad():
        return batch.having(ref_hidden=hidden_of(reference, batch))


def whole(model, batch, temperature, reference):
    """Every stream from all logits at once, written out."""
    logits = model.logits(hidden_of(model, batch)) / temperature
    with torch.no_grad():
        ref = torch.log_softmax(reference.logits(batch.ref_hidden) / temperature, -1)
    logprobs = torch.log_softmax(logits, -1)
    ids = batch.completion_ids[batch.existing()]
    named = {
        "logprobs": logprobs[torch.arange(len(ids)), ids],
        "entropy": -(logprobs.exp() * logprobs).sum(-1),
        "full_kl": (logprobs.exp() * (logprobs - ref)).sum(-1),
    }
    table = {}
    for name, column in named.items():
        table[name] = torch.zeros(batch.completion_ids.shape, dtype=column.dtype)
        table[name][batch.existing()] = column
    return table


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 5, 10_000])
@pytest.mark.parametrize(
    "make", [lambda seed=0: fast_model(seed=seed), lambda seed=0: GenericModel(TinyLM(VOCABULARY, seed=seed).double())]
)
def test_chunks_give_the_numbers_and_gradients_of_all_logits_at_once(make, chunk, temperature, monkeypatch):
    monkeypatch.setattr(stats_of_tokens, "_sizes", lambda model, hidden: (chunk, chunk))
    model, reference = make(), make(seed=1)
    batch = with_reference(batch_of(), reference)
    stats = token_stats(model, batch, EVERYTHING, temperature, reference.logits)
    wanted = whole(model, batch, temperature, reference)
    parameters = list(model.module.parameters())
    weights = torch.cos(torch.arange(batch.completion_ids.numel(), dtype=torch.float64)).view(
        batch.completion_ids.shape
    )
    for name, table in wanted.items():
        stream = getattr(stats, name)
        assert torch.allclose(stream, table, rtol=1e-10, atol=1e-12)
        ours = torch.autograd.grad((stream * weights).sum(), parameters, retain_graph=True)
        theirs = torch.autograd.grad((table * weights).sum(), parameters, retain_graph=True)
        for left, right in zip(ours, theirs, strict=True):
            assert torch.allclose(left, right, rtol=1e-10, atol=1e-11)


def test_no_more_logits_than_one_chunks_exist_or_are_kept_for_the_backward(monkeypatch):
    model = fast_model()
    monkeypatch.setattr(stats_of_tokens, "_sizes", lambda model, hidden: (4, 4))
    monkeypatch.setattr(model, "head_matrix", lambda: None)
    heads, kept = [], []
    model.module.lm_head.register_forward_hook(lambda layer, args, output: heads.append(output.shape[0]))

    def keep(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stats = token_stats(model, batch_of(), frozenset({"entropy"}))
    assert max(heads) == 4
    assert not [shape for shape in kept if len(shape) == 2 and shape[1] == VOCABULARY and shape[0] == 4]
    before = len(heads)
    stats.logprobs.sum().backward()
    assert len(heads) > before  # made again, chunk by chunk
    assert max(heads) == 4


def test_the_backward_keeps_one_table_of_the_vocabulary_whatever_is_observed():
    model, batch, kept = fast_model(), batch_of(), []
    tokens = int(batch.lengths.sum())
    module_parameters = {parameter.data_ptr() for parameter in model.module.parameters()}

    def keep(tensor):
        if tensor.shape == (tokens, VOCABULARY) and tensor.data_ptr() not in module_parameters:
            kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_stats(model, batch, temperature=0.7, observe=frozenset({"entropy"}))
    assert len(set(kept)) == 1
