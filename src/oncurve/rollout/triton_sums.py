"""The sums of weights that the sampler searches, in Triton: the logits are read once.

    top_b = max z_v,  sum_b = Σ exp((z_v - top_b) / τ),  over the tokens v of block b

A block's weights are measured against its own highest logit, so the row's need not be known before; `sampler` brings
the blocks to one scale. A NaN stays in its block's sum. Imported only where Triton is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = 16
"""Blocks of one program."""


def tops_and_sums(logits: Tensor, block: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the highest logit and the sum of weights `(n, ⌈V / block⌉)` of each block, float32, of `logits (n, V)`."""
    count, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, block)
    found = logits.new_empty(2, count, blocks, dtype=torch.float32)
    grid = (count, triton.cdiv(blocks, _BLOCKS))
    _tops_and_sums[grid](logits, *found, logits.stride(0), vocabulary, blocks, 1 / temperature, _BLOCKS, block)
    return found[0], found[1]


@triton.jit
def _tops_and_sums(logits, tops, sums, step, vocabulary, blocks, scale, many: tl.constexpr, block: tl.constexpr):
    row, block_number = tl.program_id(0).to(tl.int64), tl.program_id(1) * many + tl.arange(0, many)
    token = block_number[:, None] * block + tl.arange(0, block)[None, :]
    z = tl.load(logits + row * step + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    top = tl.max(z, 1)
    weights = tl.exp((z - tl.where(top == float("-inf"), 0.0, top)[:, None]) * scale)
    tl.store(tops + row * blocks + block_number, top, mask=block_number < blocks)
    tl.store(sums + row * blocks + block_number, tl.sum(weights, 1), mask=block_number < blocks)
