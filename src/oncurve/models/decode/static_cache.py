"""A KV cache in tensors that stay where they are: the form of a decoding step that a CUDA graph can hold.

A graph replays the same kernels on the same addresses, and nothing in it may wait for the host. So keys and values are
allocated from the start, every row's progress is a tensor, masks are computed from these tensors, and no shape depends
on data. The cache has `groups` slots of `copies` rows each: row `g · copies + c` is row c of the group in slot g.

    lengths (M,)            tokens of the prompt in each slot; 0: the slot is empty
    steps   (n,)            tokens that each row has written; the next is written there
    prefix  (M, h_kv, P, d)       of each layer: the prompts', once per group
    suffix  (M, h_kv, G, C, d)    of each layer: what each row has written

Rows need not be in step with one another, so a slot is free for the next group as soon as its group is done. A step can
be run for the first m slots only, and for the first w positions of the suffix: both are sizes of a graph, not data.

Covered: grouped-query heads, sliding windows, bf16. Same results as `batched_cache.DecodeContext`, which is faster on a
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.machine.compiled import compiled
from oncurve.models.decode.prefill import Prefixes


@dataclass(frozen=True)
class CacheShape:
    """The sizes of a cache: `groups` slots of `copies` rows, prompts and completions of at most so many tokens."""

    groups: int
    copies: int
    prompt_tokens: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """n, the rows of all slots."""
        return self.groups * self.copies

    def suffix(self, kv_heads: int) -> tuple[int, int, int, int]:
        """Return the shape of a layer's suffix, but for the features."""
        return self.groups, kv_heads, self.copies, self.new_tokens


@dataclass
class _Layer:
    """Keys and values of one layer; suffixes hold the positions of all rows in one axis, `(M · h_kv · G · C, d)`."""

    prefix_key: Tensor
    prefix_value: Tensor
    suffix_key: Tensor
    suffix_value: Tensor

    @property
    def prefixes(self) -> tuple[Tensor, Tensor]:
        return self.prefix_key, self.prefix_value

    @property
    def suffixes(self) -> tuple[Tensor, Tensor]:
        return self.suffix_key, self.suffix_value


class StaticCache:
    """Keys, values, and how far each row has come. Tensors are changed in slot and never replaced."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        self.shape = shape
        self.lengths = torch.zeros(shape.groups, dtype=torch.int64, device=device)
        self.steps = torch.zeros(shape.rows, dtype=torch.int64, device=device)
        self.layers: dict[int, _Layer] = {}

    def insert(self, slot: int, prefixes: Prefixes, prompt: int) -> None:
        """Put a group into a slot: prompt number `prompt` of `prefixes`, whose rows begin. Its tokens must fit."""
        tokens = prefixes.longest
        for layer, (key, value) in prefixes.layers.items():
            stored = self._layer(layer, key, value)
            stored.prefix_key[slot, :, :tokens] = key[prompt]
            stored.prefix_value[slot, :, :tokens] = value[prompt]
        self.lengths[slot] = prefixes.lengths[prompt]
        self.steps[self.rows_of(slot)] = 0

    def rows_of(self, slot: int) -> slice:
        """Return the rows of one slot."""
        return slice(slot * self.shape.copies, (slot + 1) * self.shape.copies)

    def positions(self, slots: int) -> Tensor:
        """Return `(m · G,)`: the position of each row's next token in its text."""
        written = self.steps[: slots * self.shape.copies].view(slots, -1)
        return (self.lengths[:slots, None] + written).flatten()

    def _layer(self, layer: int, key: Tensor, value: Tensor) -> _Layer:
        if layer not in self.layers:
            shape, kv_heads = self.shape, key.shape[1]
            sizes = key.shape[-1], value.shape[-1]
            # Zeros, not uninitialised memory: a position that is masked has weight 0, but 0 times NaN is NaN.
            prefix = [key.new_zeros(shape.groups, kv_heads, shape.prompt_tokens, size) for size in sizes]
            suffix = [key.new_zeros(shape.rows * kv_heads * shape.new_tokens, size) for size in sizes]
            self.layers[layer] = _Layer(*prefix, *suffix)
        return self.layers[layer]


class StaticContext:
    """Attention of one step of the first `slots` slots, over the first `width` positions of the suffix.

    Every row's `steps` must be below `width`.
    """

    def __init__(self, cache: StaticCache, slots: int, width: int) -> None:
        self._cache = cache
        self._slots, self._width = slots, width
        self._positions: dict[int, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer; N is the rows of the slots, in their order."""
        stored, shape, slots, width = self._cache.layers[layer], self._cache.shape, self._slots, self._width
        kv_heads, shared = key.shape[1], query.shape[1] // key.shape[1]
        positions = self._next_positions(kv_heads)
        stored.suffix_key.index_copy_(0, positions, self._enter(key, kv_heads).flatten(0, 3))
        stored.suffix_value.index_copy_(0, positions, self._enter(value, kv_heads).flatten(0, 3))
        keys, values = (
            x.view(*shape.suffix(kv_heads), -1)[:slots, :, :, :width].flatten(0, 2) for x in stored.suffixes
        )
        asked = self._enter(query, kv_heads)  # (m, h_kv, G, s, d): one matrix per group and head, or per row
        by_group, by_row = asked.view(slots * kv_heads, -1, query.shape[2]), asked.flatten(0, 2)
        prefix_key, prefix_value = stored.prefix_key[:slots].flatten(0, 1), stored.prefix_value[:slots].flatten(0, 1)
        scores = (slots, kv_heads, shape.copies, shared, -1)
        before, own = _weights(
            torch.bmm(by_group, prefix_key.transpose(1, 2)).view(scores),
            torch.bmm(by_row, keys.transpose(1, 2)).view(scores),
            self._cache.lengths[:slots],
            self._cache.steps[: slots * shape.copies].view(slots, -1),
            scaling,
            window,
        )
        attended = torch.bmm(before.view(*by_group.shape[:2], -1), prefix_value).view(*asked.shape[:4], -1)
        attended = attended + torch.bmm(own.view(*by_row.shape[:2], -1), values).view(attended.shape)
        return attended.transpose(1, 2).reshape(slots * shape.copies, kv_heads * shared, -1)

    def _enter(self, x: Tensor, kv_heads: int) -> Tensor:
        """Return `(n, h, d)` -> `(m, h_kv, G, h / h_kv, d)`, contiguous."""
        shape = self._cache.shape
        return x.reshape(self._slots, shape.copies, kv_heads, -1, x.shape[2]).transpose(1, 2).contiguous()

    def _next_positions(self, kv_heads: int) -> Tensor:
        """Return `(m · h_kv · G,)`: where in the suffix each row's next key is written, for every key head."""
        if kv_heads not in self._positions:
            shape, slots = self._cache.shape, self._slots
            steps = self._cache.steps[: slots * shape.copies].view(slots, 1, -1).expand(-1, kv_heads, -1)
            rows = torch.arange(slots * kv_heads * shape.copies, device=steps.device)
            self._positions[kv_heads] = rows * shape.new_tokens + steps.flatten()
        return self._positions[kv_heads]


@compiled
def _weights(
    before: Tensor, own: Tensor, lengths: Tensor, steps: Tensor, scaling: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return one softmax over the scores `(m, h_kv, G, s, P)` of the prefix and `(m, h_kv, G, s, w)` of the suffix.

    lengths (m,) of the prefixes; steps (m, G), the position of the newest token, which every row sees: no row is empty.
    """
    exact = torch.promote_types(before.dtype, torch.float32)
    in_prefix = torch.arange(before.shape[-1], device=before.device)
    in_own = torch.arange(own.shape[-1], device=own.device)
    sees_before = (in_prefix < lengths[:, None, None]).expand(*steps.shape, -1)
    sees_own = in_own <= steps[..., None]
    if window is not None:
        sees_before = sees_before & ((lengths[:, None] + steps)[..., None] - in_prefix < window)
        sees_own = sees_own & (steps[..., None] - in_own < window)
    lowest = float("-inf")
    left = torch.where(sees_before[:, None, :, None], before.to(exact) * scaling, lowest)
    right = torch.where(sees_own[:, None, :, None], own.to(exact) * scaling, lowest)
    top = torch.maximum(left.amax(-1, keepdim=True), right.amax(-1, keepdim=True))
    left, right = (left - top).exp(), (right - top).exp()
    total = left.sum(-1, keepdim=True) + right.sum(-1, keepdim=True)
    return (left / total).to(before.dtype), (right / total).to(own.dtype)
