"""Kept gradients: the same numbers as autograd's own, in a tensor that stays; and what may go there by pieces."""

import pytest
import torch
from torch import nn

from oncurve.learner.optim import MasterAdamW
from oncurve.models.head.gradient_buffers import keep_gradient, kept_bytes, kept_gradient
from oncurve.models.head.linear_logprobs import linear_logprobs


def linear(dtype=torch.bfloat16, kept=True):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).to(dtype)
    if kept:
        for parameter in layer.parameters():
            keep_gradient(parameter, torch.float32 if dtype == torch.bfloat16 else dtype)
    return layer


def head_inputs(tokens=7, vocabulary=1100, dtype=torch.bfloat16):
    torch.manual_seed(1)
    hidden = torch.randn(tokens, 16, dtype=dtype)
    weight = nn.Parameter(torch.randn(vocabulary, 16).to(dtype))
    return hidden, weight, torch.randint(0, vocabulary, (tokens,))


def test_the_gradient_is_autograds_widened_and_summed_in_float32() -> None:
    ours, theirs = linear(), linear(kept=False)
    for parameter in theirs.parameters():
        parameter.grad_dtype = torch.float32
    for scale in (1.0, 0.003, 50.0):
        x = scale * torch.randn(5, 6).bfloat16()
        for layer in (ours, theirs):
            layer(x).square().sum().backward()
    for given, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert given.grad.dtype == torch.float32
        assert torch.equal(given.grad, right.grad)


def test_it_is_one_tensor_from_update_to_update_and_forgets_the_last_ones_numbers() -> None:
    layer, seen = linear(), []
    assert kept_bytes(layer.parameters()) == 0
    for _ in range(3):
        layer(torch.ones(1, 6, dtype=torch.bfloat16)).sum().backward()
        seen.append((layer.weight.grad.data_ptr(), layer.weight.grad.clone()))
        layer.weight.grad.fill_(float("nan"))  # what an optimizer leaves behind
        layer.weight.grad = None
    assert len({place for place, _ in seen}) == 1
    assert all(torch.equal(numbers, torch.ones(4, 6)) for _, numbers in seen)
    assert kept_bytes(layer.parameters()) == 4 * (24 + 4)
    assert kept_gradient(layer.weight).data_ptr() == seen[0][0]


@pytest.mark.parametrize("passes", [1, 3])
def test_the_heads_gradient_goes_there_by_pieces(passes: int) -> None:
    hidden, weight, ids = head_inputs()
    plain = nn.Parameter(weight.detach().clone())
    plain.grad_dtype = torch.float32
    keep_gradient(weight, torch.float32)
    for number in range(passes):
        for matrix in (weight, plain):
            workspace = 7 * 2 * 128  # nine blocks
            logprobs, _ = linear_logprobs(hidden + number, matrix, ids, kept_bytes=0, workspace_bytes=workspace)
            logprobs.sum().backward()
    assert weight.grad is kept_gradient(weight)
    assert torch.equal(weight.grad, plain.grad)


def test_a_sparse_gradient_that_came_before_stays_and_is_added_up() -> None:
    hidden, weight, ids = head_inputs(dtype=torch.float64)
    optimizer = MasterAdamW(nn.ParameterList([weight]))
    twice, ones = torch.tensor([[3, 3]]), torch.ones(2, 16, dtype=torch.float64)
    rows = torch.sparse_coo_tensor(twice, ones, weight.shape, check_invariants=True)
    weight.grad = rows
    linear_logprobs(hidden, weight, ids)[0].sum().backward()
    exact = weight.detach().clone().requires_grad_()
    table = torch.log_softmax(hidden @ exact.t(), -1).gather(1, ids[:, None]).sum()
    wanted = torch.autograd.grad(table, exact)[0] + rows.to_dense()
    torch.testing.assert_close(optimizer.gradients()["0"], wanted, rtol=1e-12, atol=1e-13)
