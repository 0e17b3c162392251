"""FlexAttention's results with its mask written out for every pair: slow, with a gradient anywhere. No oncurve here."""

from typing import Any

import torch
from torch import Tensor


def dense_flex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool
) -> Tensor:
    """`(1, h, N, d)` of queries over keys, where `block_mask.mask_mod` allows."""
    tokens = torch.arange(query.shape[2], device=query.device)
    zero = torch.zeros((), dtype=torch.int64, device=query.device)
    allowed = block_mask.mask_mod(zero, zero, tokens[:, None], tokens[None, :])
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = (query @ key.transpose(2, 3)) * scale
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ value
