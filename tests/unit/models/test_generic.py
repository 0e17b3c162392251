"""Any module that maps ids to logits is a model: scored and decoded as it computes row by row."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fakes.architectures import ROWS, VOCABULARY, architecture
from fakes.tiny_policy import TinyLM
from oncurve.errors import ModelError
from oncurve.models import GenericModel
from oracles.plain_forward import next_logits, plain_logits


class Returning(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, input_ids):
        return self.result


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("make", [lambda: TinyLM(VOCABULARY).double(), lambda: architecture("gpt2", torch.float64)])
def test_scoring_equals_each_row_alone_in_value_and_gradient(make, rows):
    module = make()
    model = GenericModel(module)
    arguments = (rows.prompts, rows.group_ids, rows.completion_ids, rows.lengths)
    ours, theirs = model.logits(model.completion_hidden(*arguments)), plain_logits(module, *arguments)
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    weights = torch.cos(torch.arange(ours.numel(), dtype=ours.dtype)).view_as(ours)
    parameters = list(module.parameters())
    for left, right in zip(
        torch.autograd.grad((ours * weights).sum(), parameters),
        torch.autograd.grad((theirs * weights).sum(), parameters),
        strict=True,
    ):
        assert torch.allclose(left, right, rtol=1e-9, atol=1e-9)


def test_decoding_equals_each_row_alone_while_rows_are_dropped():
    module = TinyLM(VOCABULARY).double()
    model = GenericModel(module)
    prompts = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    decoder = model.decoder(prompts, [2, 2], 5)
    rows = [(0, []), (0, []), (1, []), (1, [])]
    hidden = decoder.first_hidden[decoder.groups]
    for step in range(5):
        for row, (group, written) in enumerate(rows):
            wanted = next_logits(module, prompts[group], written)
            assert torch.allclose(model.logits(hidden)[row], wanted, atol=1e-12)
        if step == 2:
            decoder.keep(torch.tensor([1, 2]))
            rows = [rows[1], rows[2]]
        assert decoder.groups.tolist() == [group for group, _ in rows]
        ids = torch.arange(len(rows)) + step
        for (_, written), token in zip(rows, ids.tolist(), strict=True):
            written.append(token)
        hidden = decoder.step(ids)


@pytest.mark.parametrize("result", [torch.zeros(2, 5), (torch.zeros(1, 5, 3),), None, SimpleNamespace(logits=None)])
def test_a_module_that_returns_no_logits_is_refused_with_what_it_returned(result):
    with pytest.raises(ModelError, match="must return logits of shape"):
        GenericModel(Returning(result)).decoder([torch.tensor([1, 2])], [1], 1)
