"""Attention of rows that share prefixes, on the CPU: torch's fused kernel both ways, prefixes kept once.

The kernel takes every row's keys in one tensor: its prefix and what follows. They are concatenated for a few rows at a
time and freed; saved for the backward are the prefixes once, the rows' own keys and values, and a log-sum-exp per
query. The backward makes the same pieces again and sums the gradients that a prefix gets from all its rows.

In half precision the kernel's backward converts as it goes and takes two to eight times as long as its float32 twin,
so the backward is float32 whatever the forward is: faster, and more exact.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_AT_ONCE = 1 << 24
"""Bytes of keys, put together in float32 for all heads, of a few rows at a time."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fits(query: Tensor, value: Tensor) -> bool:
    """Return whether this kernel is the faster one: half precision on the CPU, keys and values of one size.

    In float32 the kernel's own backward is used as it is, and there is nothing to gain.
    """
    return query.device.type == "cpu" and query.dtype.itemsize < 4 and query.shape[-1] == value.shape[-1]


def rows_attention(
    query: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    prefix_of_row: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention `(R, C, h, d)` of R rows of C queries.

    query          (R, C, h, d)
    keys, values   of the prefixes (M, P, h_kv, d), and of the rows (R, C, h_kv, d); h a multiple of h_kv
    prefix_of_row  (R,) int64, the index of each row's prefix
    mask           (1 | R, 1, C, P + C), added to the scores; None: causal, where P = 0

    Differentiable once.
    """
    attended: Tensor = _RowsAttention.apply(query, *keys, *values, prefix_of_row, mask, scale)  # type: ignore[no-untyped-call]
    return attended


class _RowsAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        prefix_key: Tensor,
        key: Tensor,
        prefix_value: Tensor,
        value: Tensor,
        prefix_of_row: Tensor,
        mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        out = torch.empty_like(query)
        log_sums = []
        added = None if mask is None else mask.to(query.dtype)
        for rows in _slices(query, prefix_key):
            whole = [_whole(p, s, prefix_of_row, rows, query) for p, s in ((prefix_key, key), (prefix_value, value))]
            attended, log_sum = _forward(
                query[rows].transpose(1, 2), *whole, 0.0, mask is None, attn_mask=_of(added, rows), scale=scale
            )
            out[rows] = attended.transpose(1, 2)
            log_sums.append(log_sum)
        ctx.save_for_backward(query, prefix_key, key, prefix_value, value, mask, out, *log_sums)
        ctx.prefix_of_row, ctx.scale = prefix_of_row, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, prefix_key, key, prefix_value, value, mask, out, *log_sums = ctx.saved_tensors
        raised = torch.promote_types(query.dtype, torch.float32)
        by_query = torch.empty_like(query)
        sums = [_Sums(prefix_key, key, ctx.prefix_of_row), _Sums(prefix_value, value, ctx.prefix_of_row)]
        added = None if mask is None else mask.to(raised)
        for rows, log_sum in zip(_slices(query, prefix_key), log_sums, strict=True):
            arrived, asked, attended = (x[rows].to(raised).transpose(1, 2) for x in (grad, query, out))
            whole = [
                _whole(p, s, ctx.prefix_of_row, rows, asked.transpose(1, 2))
                for p, s in ((prefix_key, key), (prefix_value, value))
            ]
            options = {"attn_mask": _of(added, rows), "scale": ctx.scale}
            by_asked, *by_whole = _backward(arrived, asked, *whole, attended, log_sum, 0.0, mask is None, **options)
            by_query[rows] = by_asked.transpose(1, 2)
            for side, gradient in zip(sums, by_whole, strict=True):
                side.add(gradient, rows)
        (by_prefix_key, by_key), (by_prefix_value, by_value) = (side.result() for side in sums)
        return by_query, by_prefix_key, by_key, by_prefix_value, by_value, None, None, None


def _slices(query: Tensor, prefix: Tensor) -> Iterator[slice]:
    rows, steps, heads, size = query.shape
    at_once = max(1, _AT_ONCE // (4 * heads * (prefix.shape[1] + steps) * size))
    for first in range(0, rows, at_once):
        yield slice(first, min(rows, first + at_once))


def _of(mask: Tensor | None, rows: slice) -> Tensor | None:
    return mask if mask is None or mask.shape[0] == 1 else mask[rows]


def _whole(prefix: Tensor, suffix: Tensor, prefix_of_row: Tensor, rows: slice, query: Tensor) -> Tensor:
    """Return `(r, h, P + C, d)` in the query's dtype: the keys or values that these rows see, once per query head."""
    count, steps, kv_heads, size = suffix[rows].shape
    length = prefix.shape[1]
    whole = query.new_empty(count, kv_heads, query.shape[2] // kv_heads, length + steps, size)
    whole[:, :, :, :length] = prefix[prefix_of_row[rows]].transpose(1, 2)[:, :, None]
    whole[:, :, :, length:] = suffix[rows].transpose(1, 2)[:, :, None]
    return whole.flatten(1, 2)


class _Sums:
    """Gradients of prefixes and rows, collected over slices of the rows."""

    def __init__(self, prefix: Tensor, suffix: Tensor, prefix_of_row: Tensor) -> None:
        self._prefix_of_row, self._suffix = prefix_of_row, torch.empty_like(suffix)
        count, length, kv_heads, size = prefix.shape
        raised = torch.promote_types(prefix.dtype, torch.float32)
        self._prefix = torch.zeros(count, kv_heads, length, size, dtype=raised)

    def add(self, gradient: Tensor, rows: slice) -> None:
        """Take `gradient (r, h, P + C, d)` of what `_whole` gave for these rows."""
        count, steps, kv_heads, size = self._suffix[rows].shape
        summed = gradient.view(count, kv_heads, -1, gradient.shape[2], size).sum(2)
        length = gradient.shape[2] - steps
        self._suffix[rows] = summed[:, :, length:].transpose(1, 2)
        self._prefix.index_add_(0, self._prefix_of_row[rows], summed[:, :, :length])

    def result(self) -> tuple[Tensor, Tensor]:
        """Return gradients of the prefixes `(M, P, h_kv, d)`, and of the rows `(R, C, h_kv, d)`."""
        return self._prefix.transpose(1, 2).to(self._suffix.dtype), self._suffix
