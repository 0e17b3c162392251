"""Packed, prefix-shared attention in one kernel: FlexAttention over the flat row of tokens, for GPUs.

`packed_rows.PackedContext` pads rows for attention and copies each group's prefix to each of its completions. Here
nothing is padded and nothing is copied: query i may see key j where

    j ≤ i,  group_j = group_i,  and j is of the prompt or of i's own row,  and position_i - position_j < window

All prompts come before all completions, so `j ≤ i` is causality in every case. Which pairs of blocks hold any such
pair, and which hold nothing else, follows from the smallest and largest group, row and position of each: `(N / 128)²`
numbers, never `N²`. A pair of blocks that is kept in vain costs a little time; the mask itself is exact.

One kernel forward and two backward, gradients included, with windows and grouped heads: attention over prompt and own
past apart would need the gradient of a log-sum-exp, which no public kernel gives. FlexAttention has no backward on a
CPU, where `packed_rows.PackedContext` is used.

The row is filled up to whole blocks with tokens of a group of their own, which predict nothing.

A compiled kernel is tested before it is used: for each shape of heads, values and gradients of two small rows are
compared with those of the padded rows. Where it cannot be compiled, or differs, the padded rows are used, and a warning
is given once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from oncurve.base.output import warn
from oncurve.machine.compiled import allow_many_forms
from oncurve.models.attention.packed_rows import PackedContext

BLOCK = 128
"""Tokens of a block, the size FlexAttention is made for."""

Kernel = Callable[..., Any]
"""`flex_attention`, or a function with its arguments."""

_PROMPT = -1

_LEAST_SIZE = 16  # features of a head that the kernel needs; zeros add nothing to a score

_COMPILED: list[Kernel] = []

_TRIED: dict[tuple[Any, ...], str | None] = {}
"""Why the compiled kernel is not used (None: it is), by shape of heads, dtype and window or none."""

_KERNEL_OPTIONS: dict[int, dict[str, int]] = {
    64: {"fwd_BLOCK_N": 64, "fwd_num_warps": 8, "bwd_num_stages": 2},
    128: {
        "fwd_BLOCK_N": 64,
        "fwd_num_warps": 8,
        "bwd_num_stages": 2,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 32,
    },
}
"""Options of the compiled kernel by features of a head. With its own choice the mask and a length that varies make it
spill 1,912 bytes of registers at 64 features and 1,360 at 128; with these 96 and 224 (compiled for sm_90).
"""

_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-6}
_HALF_CLOSE = 5e-2


def kernel_for(device: torch.device) -> Kernel:
    """Return `flex_attention`, compiled on CUDA; elsewhere as it is, which makes all scores and has no backward."""
    if device.type != "cuda":
        return flex_attention
    if not _COMPILED:
        allow_many_forms()
        # Sizes differ from micro-batch to micro-batch: compiled for the first, then once more for any.
        _COMPILED.append(torch.compile(flex_attention))
    return _COMPILED[0]


class FlexContext(PackedContext):
    """`PackedContext` with another attention: the same layout, filled up to whole blocks."""

    def __init__(
        self,
        prompts: Sequence[Tensor],
        group_ids: Tensor,
        completion_ids: Tensor,
        lengths: Tensor,
        kernel: Kernel | None = None,
        block: int = BLOCK,
    ) -> None:
        super().__init__(prompts, group_ids, completion_ids, lengths)
        self._kernel = kernel or kernel_for(completion_ids.device)
        self._block = block
        self._block_masks: dict[int | None, BlockMask] = {}
        row = self._completions.row_of_token()
        group = torch.cat([self._prompts.row_of_token(), group_ids[row]])
        row = torch.cat([torch.full_like(self.ids[: self._prompt_tokens], _PROMPT), row])
        self._missing = missing = -len(self.ids) % block
        self._group = nn.functional.pad(group, (0, missing), value=len(prompts))
        self._row = nn.functional.pad(row, (0, missing), value=_PROMPT)
        self.ids, self.positions = (nn.functional.pad(x, (0, missing)) for x in (self.ids, self.positions))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer. Stores nothing, so any layer may be run again."""
        if self._kernel in _COMPILED and _tried(self._kernel, query, key, value, window) is not None:
            return self._by_rows(layer, query, key, value, scaling, window)
        return self._in_blocks(layer, query, key, value, scaling, window)

    def _in_blocks(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if window not in self._block_masks:
            self._block_masks[window] = self._block_mask(window)
        missing = (max(0, _LEAST_SIZE - x.shape[2]) for x in (query, key, value))
        asked = (nn.functional.pad(x, (0, m)) for x, m in zip((query, key, value), missing, strict=True))
        chosen = _KERNEL_OPTIONS.get(query.shape[2]) if self._kernel in _COMPILED else None
        options = {} if chosen is None else {"kernel_options": chosen}
        attended: Tensor = self._kernel(
            *(x.transpose(0, 1)[None] for x in asked),
            block_mask=self._block_masks[window],
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            **options,
        )
        return attended[0].transpose(0, 1)[..., : value.shape[2]]

    def _by_rows(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Return the padded rows' attention; nothing for the tokens that fill up the last block."""
        count = len(self.ids) - self._missing
        attended = super().attend(layer, query[:count], key[:count], value[:count], scaling, window)
        return nn.functional.pad(attended, (0, 0, 0, 0, 0, self._missing))

    def allowed(self, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the mask as FlexAttention takes it: of (batch, head, query, key), whether the query sees the key."""
        group, row, position = self._group, self._row, self.positions

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            mine = (row[key] == _PROMPT) | (row[key] == row[query])
            return (query >= key) & (group[query] == group[key]) & mine

        if window is None:
            return sees
        reach = window

        def sees_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sees(batch, head, query, key) & (position[query] - position[key] < reach)

        return sees_near

    def _block_mask(self, window: int | None) -> BlockMask:
        some, all_of = self._blocks(window)
        partial = some & ~all_of
        return BlockMask.from_kv_blocks(
            *_listed(partial),
            *_listed(all_of),
            BLOCK_SIZE=self._block,
            mask_mod=self.allowed(window),
            seq_lengths=(len(self.ids), len(self.ids)),
        )

    def _blocks(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return pairs of blocks `(queries, keys)` that may hold an allowed pair, and those in which every pair is
        allowed.
        """
        group, row, position = (_Range(x, self._block) for x in (self._group, self._row, self.positions))
        number = torch.arange(len(self._group) // self._block, device=self._group.device)
        mine = (row.low == _PROMPT)[None, :] | row.overlap()
        some = (number[:, None] >= number[None, :]) & group.overlap() & mine
        prompts = (row.high == _PROMPT)[None, :]
        all_of = (number[:, None] > number[None, :]) & group.same() & (prompts | row.same())
        if window is not None:
            some &= position.low[:, None] - position.high[None, :] < window
            all_of &= position.high[:, None] - position.low[None, :] < window
        return some, all_of


class _Range:
    """Smallest and largest number `(blocks,)` of each block."""

    def __init__(self, numbers: Tensor, block: int) -> None:
        self.low, self.high = numbers.view(-1, block).aminmax(dim=1)

    def overlap(self) -> Tensor:
        """Return `(queries, keys)`: whether any number may be in both."""
        return (self.low[:, None] <= self.high[None, :]) & (self.low[None, :] <= self.high[:, None])

    def same(self) -> Tensor:
        """Return `(queries, keys)`: whether one number is in both and no other in either."""
        one = self.low == self.high
        return one[:, None] & one[None, :] & (self.low[:, None] == self.low[None, :])


def _listed(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return for `pairs (q, k)` each query's count of keys and their numbers: int32 `(1, 1, q)`, `(1, 1, q, k)`."""
    numbers = torch.argsort(pairs.to(torch.int8), dim=1, descending=True, stable=True)
    return pairs.sum(1, dtype=torch.int32)[None, None], numbers.to(torch.int32)[None, None].contiguous()


def _tried(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> str | None:
    heads = query.shape[1], key.shape[1], query.shape[2], value.shape[2]
    case = (*heads, query.dtype, query.device, window is None)
    if case not in _TRIED:
        _TRIED[case] = reason = trial(kernel, heads, query.dtype, query.device, window is not None)
        if reason is not None:
            warn(f"FlexAttention is not used, attention runs on padded rows: {reason}")
    return _TRIED[case]


def trial(
    kernel: Kernel, heads: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, windowed: bool
) -> str | None:
    """Return why a kernel is not used: it fails, or differs from the padded rows in value or gradient. None: it may be
    used.

    `heads` are numbers of query and key heads, and their features in keys and values. Rows of two lengths are tried,
    because a compiler makes another kernel once lengths differ.
    """
    query_heads, kv_heads, size, value_size = heads
    generator = torch.Generator().manual_seed(0)
    for tokens in (2 * BLOCK, 3 * BLOCK):
        lengths = torch.tensor([tokens // 4 + 1, tokens // 4 + 9], device=device)
        prompts = [torch.zeros(tokens // 4, dtype=torch.int64, device=device) for _ in range(2)]
        completions = torch.zeros(2, tokens // 4 + 9, dtype=torch.int64, device=device)
        context = FlexContext(prompts, torch.arange(2, device=device), completions, lengths, kernel)
        inputs = [
            torch.randn(len(context.ids), *shape, generator=generator).to(device, dtype).requires_grad_()
            for shape in ((query_heads, size), (kv_heads, size), (kv_heads, value_size))
        ]
        asked = (0, *inputs, size**-0.5, BLOCK // 2 if windowed else None)
        real = slice(len(context.ids) - context._missing)
        try:
            with torch.enable_grad():
                results = [attend(*asked)[real] for attend in (context._in_blocks, context._by_rows)]
                gradients = [torch.autograd.grad(result.square().sum(), inputs) for result in results]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler's errors have no common base
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        for ours, theirs in (results, *zip(*gradients, strict=True)):
            difference = float((ours - theirs).detach().float().norm() / theirs.detach().float().norm())
            if not difference <= _CLOSE.get(dtype, _HALF_CLOSE):
                return f"it differs from the padded rows by {difference:.1e}"
    return None
