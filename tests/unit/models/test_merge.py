"""Attention over two parts of the keys, merged, is attention over all of them."""

import pytest
import torch

from oncurve.models.attention.merge import attend_part, merge_softmax


def parts(dtype, value_size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, value_size), (2, 3, 4, 8), (2, 3, 4, value_size))
    return [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


def plain(query, keys, values, scaling, mask):
    scores = query @ keys.transpose(2, 3) * scaling
    return torch.softmax(scores.masked_fill(mask, -torch.inf), -1) @ values


@pytest.mark.parametrize("value_size", [8, 6], ids=["fused", "plain"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_two_parts_are_the_whole(dtype, tolerance, value_size):
    query, key, value, other_key, other_value = parts(dtype, value_size)
    hidden = torch.tensor([[0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    mask = torch.zeros(2, 7, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)[:, None, None]
    one = attend_part(query, key, value, 0.3, mask)
    assert one[1].dtype == torch.promote_types(dtype, torch.float32)
    merged = merge_softmax(*one, *attend_part(query, other_key, other_value, 0.3))
    keys, values = torch.cat([key, other_key], 2).double(), torch.cat([value, other_value], 2).double()
    unseen = torch.nn.functional.pad(hidden, (0, 4))[:, None, None]
    expected = plain(query.double(), keys, values, 0.3, unseen)
    torch.testing.assert_close(merged.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("value_size", [8, 6], ids=["fused", "plain"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_part_that_is_masked_whole_counts_nothing(dtype, value_size):
    query, key, value, other_key, other_value = parts(dtype, value_size)
    mask = torch.full((2, 1, 1, 7), torch.finfo(dtype).min, dtype=dtype)
    other = attend_part(query, other_key, other_value, 0.3)
    merged = merge_softmax(*attend_part(query, key, value, 0.3, mask), *other)
    assert torch.equal(merged, other[0])
