"""The kernels of a decoding step on a GPU, in Triton: the functions of `paged_attention`, with the same arguments.

    write        one program per row and key head
    attend       one program per row, key head and share of the row's keys; then one per row and query head, which joins
                 the shares by their log-sum-exps

The query heads of one key head are the rows of a matrix product, padded to 16 for the tensor cores. Rows of a group
stand next to one another, so their programs run together and find the prompt's pages in the L2 cache. Few rows get more
shares, so that there are enough programs for a whole GPU.

Covered: bf16, fp16, float32 (products in full precision), heads of any size. Imported only where Triton is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 2048
"""Several for each multiprocessor: the rows differ in length."""
_MOST_SHARES = 32


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Write `key, value (n, h_kv, d)` into the pages, at `places (n,)`."""
    rows, heads, size = key.shape
    steps = *key.stride(), *value.stride()
    _write[(rows, heads)](key, value, keys, values, places, *steps, heads, size, triton.next_power_of_2(size))


def attend(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, starts: Tensor, ends: Tensor, page: int, scaling: float
) -> Tensor:
    """Return `(n, h, d)`: each row's attention over its places from `starts` up to `ends`."""
    rows, heads, size = query.shape
    kv_heads, width = keys.shape[1], triton.next_power_of_2(size)
    shared = heads // kv_heads
    shares = min(_MOST_SHARES, triton.next_power_of_2(triton.cdiv(_PROGRAMS, rows * kv_heads)))
    block, warps = (64, 4) if query.itemsize < 4 else (32, 8)  # more does not fit into a thread's registers
    out = query.new_empty(rows, heads, size)
    parts = out if shares == 1 else query.new_empty(rows, heads, shares, size, dtype=torch.float32)
    sums = query.new_empty(rows, heads, shares, dtype=torch.float32)
    _attend[(rows, kv_heads, shares)](
        *(query, keys, values, table, starts, ends, parts, sums, *query.stride(), table.stride(0), scaling),
        *(kv_heads, shared, max(16, triton.next_power_of_2(shared)), size, max(16, width), page, block, shares),
        num_stages=2,
        num_warps=warps,
    )
    if shares > 1:
        _join[(rows, heads)](parts, sums, out, heads, size, width, shares, num_warps=1)
    return out


@triton.jit
def _write(
    key, value, keys, values, places, row_step, head_step, step, value_row_step, value_head_step, value_step,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, width)
    to = (tl.load(places + row).to(tl.int64) * heads + head) * size + d
    new = tl.load(key + row * row_step + head * head_step + d * step, mask=d < size)
    tl.store(keys + to, new, mask=d < size)
    new = tl.load(value + row * value_row_step + head * value_head_step + d * value_step, mask=d < size)
    tl.store(values + to, new, mask=d < size)


@triton.jit
def _attend(
    query, keys, values, table, starts, ends, parts, sums, row_step, head_step, step, columns, scaling,
    heads: tl.constexpr, shared: tl.constexpr, rows: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
    page: tl.constexpr, block: tl.constexpr, shares: tl.constexpr,
):  # fmt: skip
    row, head, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, end = tl.load(starts + row).to(tl.int32), tl.load(ends + row).to(tl.int32)
    each = tl.cdiv(tl.cdiv(end - start, block), shares) * block
    first = start + share * each
    last = tl.minimum(end, first + each)
    s, d = tl.arange(0, rows), tl.arange(0, width)
    inside, number = (s < shared)[:, None] & (d < size)[None, :], head * shared + s
    asked_at = row * row_step + number[:, None] * head_step + d[None, :] * step
    asked = tl.load(query + asked_at, mask=inside, other=0.0)
    top, total = tl.full((rows,), float("-inf"), tl.float32), tl.zeros((rows,), tl.float32)
    attended = tl.zeros((rows, width), tl.float32)
    for begin in range(first, last, block):
        place = begin + tl.arange(0, block)
        seen = place < last
        there = seen[:, None] & (d < size)[None, :]
        pages = tl.load(table + row * columns + place // page, mask=seen, other=0).to(tl.int64)
        at = ((pages * page + place % page) * heads + head)[:, None] * size + d[None, :]
        key = tl.load(keys + at, mask=there, other=0.0)
        scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scaling
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights, kept = tl.exp(scores - higher[:, None]), tl.exp(top - higher)
        value = tl.load(values + at, mask=there, other=0.0)
        attended = attended * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        top, total = higher, total * kept + tl.sum(weights, 1)
    total = tl.where(total > 0, total, 1.0)  # a share without keys
    to = (row * heads * shared + number) * shares + share
    mean = (attended / total[:, None]).to(parts.dtype.element_ty)
    tl.store(parts + to[:, None] * size + d[None, :], mean, mask=inside)
    tl.store(sums + to, top + tl.log(total), mask=s < shared)


@triton.jit
def _join(parts, sums, out, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, shares: tl.constexpr):
    at = tl.program_id(0) * heads + tl.program_id(1)
    share, d = tl.arange(0, shares), tl.arange(0, width)
    sums_of_shares = tl.load(sums + at * shares + share)
    weights = tl.exp(sums_of_shares - tl.max(sums_of_shares, 0))
    part = tl.load(parts + (at * shares + share)[:, None] * size + d[None, :], mask=(d < size)[None, :], other=0.0)
    joined = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + at * size + d, joined.to(out.dtype.element_ty), mask=d < size)
