"""Rows with shared prefixes against torch's own attention over keys put together by hand, in value and gradient."""

import pytest
import torch

from oncurve.models.attention import cpu_kernel as room
from oncurve.models.attention.cpu_kernel import fits, rows_attention
from oncurve.models.attention.packed_rows import additive


def whole_rows(prefix, suffix, groups):
    return suffix if prefix is None else torch.cat([prefix[groups], suffix], 1)


def plain(query, keys, values, groups, mask, scaling):
    """Softmax of scores, head by head, in the dtype given."""
    key, value = whole_rows(*keys, groups), whole_rows(*values, groups)
    shared = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
    scores = torch.einsum("rchd,rlhd->rhcl", query, key) * scaling
    causal = additive(torch.ones(query.shape[1], key.shape[1]).tril().bool(), query.dtype)
    weights = torch.softmax(scores + (causal if mask is None else mask), -1)
    return torch.einsum("rhcl,rlhd->rchd", weights, value)


def example(prefix, dtype, ragged=False):
    torch.manual_seed(0)
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    rows, steps, heads, kv_heads, size = 6, 5, 4, 2, 8
    query = torch.randn(rows, steps, heads, size).to(dtype)
    sides = [torch.randn(rows, steps, kv_heads, size).to(dtype) for _ in range(2)]
    prefixes = [torch.randn(3, prefix, kv_heads, size).to(dtype) if prefix else None for _ in range(2)]
    mask = None
    if prefix:
        lengths = torch.tensor([prefix, prefix - 2, prefix - 1]) if ragged else torch.full((3,), prefix)
        before = (torch.arange(prefix)[None] < lengths[groups][:, None])[:, None, :].expand(-1, steps, -1)
        own = torch.ones(steps, steps).tril().bool().expand(rows, -1, -1)
        mask = additive(torch.cat([before, own], 2), dtype)[:, None]
        mask = mask if ragged else mask[:1]
    leaves = [x.requires_grad_() for x in (query, *sides, *prefixes) if x is not None]
    keys, values = (prefixes[0], sides[0]), (prefixes[1], sides[1])
    return leaves, (query, keys, values), groups, mask


@pytest.mark.parametrize("at_once", [1 << 24, 1500])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("prefix", [0, 7])
def test_it_equals_the_plain_attention_in_value_and_gradient(prefix, ragged, at_once, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", at_once)  # the smaller one: a row or two at a time
    leaves, inputs, groups, mask = example(prefix, torch.float64, ragged)
    ours = rows_attention(*inputs, groups if prefix else None, mask, 0.3)
    theirs = plain(*inputs, groups, mask, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    arrived = torch.randn_like(ours)
    for left, right in zip(
        torch.autograd.grad(ours, leaves, arrived), torch.autograd.grad(theirs, leaves, arrived), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def test_in_bf16_its_gradient_points_where_the_exact_one_does():
    leaves, inputs, groups, mask = example(7, torch.bfloat16)
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    query, key, value, prefix_key, prefix_value = exact_leaves
    exact = plain(query, (prefix_key, key), (prefix_value, value), groups, mask.double(), 0.3)
    ours = rows_attention(*inputs, groups, mask, 0.3)
    assert ours.dtype == torch.bfloat16
    gradients = torch.autograd.grad(ours, leaves, torch.ones_like(ours))
    wanted = torch.autograd.grad(exact, exact_leaves, torch.ones_like(exact))
    for left, right in zip(gradients, wanted, strict=True):
        assert torch.nn.functional.cosine_similarity(left.double().flatten(), right.flatten(), 0) > 0.9999


def test_it_is_for_half_precision_on_the_cpu():
    half = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    assert fits(half, half)
    assert not fits(half.float(), half.float())
    assert not fits(half, half[..., :4])
