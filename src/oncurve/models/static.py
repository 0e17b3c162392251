"""Decoding in tensors that stay where they are: the form of a step that a CUDA graph can hold.

A graph replays the same kernels on the same addresses, and nothing in it may wait for the host. So keys and values have
their room from the start, every row's progress is a tensor, masks are computed from these tensors, and no shape depends
on data. The room is a grid of `groups` places of `copies` rows each: row `g · copies + c` is the c-th row of the group
in place g.

    lengths (M,)            tokens of the prompt in each place; 0: nobody there
    steps   (n,)            tokens each row has written; the next is written there
    prefix  (M, h_kv, P, d)       of each layer: the prompts', once per group
    suffix  (M, h_kv, G, C, d)    of each layer: what each row has written

Rows need not be in step with one another, so a place is free for the next group as soon as its group is done. A step
can be run for the first m places only, and for the first w slots of the suffix: both are sizes of a graph, not data.

Covered: grouped-query heads, sliding windows, bf16. Same results as `cohorts.DecodeContext`, which is faster on a CPU.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from oncurve.models.compiled import compiled
from oncurve.models.prefill import Prefixes

__all__ = ["Grid", "StaticCache", "StaticContext"]


@dataclass(frozen=True)
class Grid:
    """The sizes of a cache: `groups` places of `copies` rows, prompts and completions of at most so many tokens."""

    groups: int
    copies: int
    prompt_tokens: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """n, the rows of all places."""
        return self.groups * self.copies

    def suffix(self, kv_heads: int) -> tuple[int, int, int, int]:
        """The shape of a layer's suffix, but for the features."""
        return self.groups, kv_heads, self.copies, self.new_tokens

    def joined(self, other: Grid) -> Grid:
        """The smallest grid that holds what either holds."""
        return Grid(*map(max, astuple(self), astuple(other)))


@dataclass
class _Layer:
    """Keys and values of one layer; suffixes with the slots of all rows one after another, `(M · h_kv · G · C, d)`."""

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
    """The room of a grid, and how far each row has come. Tensors are changed in place and never replaced."""

    def __init__(self, grid: Grid, device: torch.device) -> None:
        self.grid = grid
        self.lengths = torch.zeros(grid.groups, dtype=torch.int64, device=device)
        self.steps = torch.zeros(grid.rows, dtype=torch.int64, device=device)
        self.layers: dict[int, _Layer] = {}

    def put(self, place: int, prefixes: Prefixes, prompt: int) -> None:
        """Seat a group: prompt number `prompt` of `prefixes`, whose rows begin. Prompts must fit: see `Grid`."""
        tokens = prefixes.longest
        for layer, (key, value) in prefixes.layers.items():
            room = self._room(layer, key, value)
            room.prefix_key[place, :, :tokens] = key[prompt]
            room.prefix_value[place, :, :tokens] = value[prompt]
        self.lengths[place] = prefixes.lengths[prompt]
        self.steps[self.rows_of(place)] = 0

    def rows_of(self, place: int) -> slice:
        """The rows of one place."""
        return slice(place * self.grid.copies, (place + 1) * self.grid.copies)

    def move(self, source: int, target: int) -> None:
        """Seat the group of one place in another; what stands in the first is left there."""
        for layer in self.layers.values():
            for prefix in layer.prefixes:
                prefix[target] = prefix[source]
            for suffix in layer.suffixes:
                by_place = suffix.view(self.grid.groups, -1)
                by_place[target] = by_place[source]
        self.lengths[target] = self.lengths[source]
        self.steps[self.rows_of(target)] = self.steps[self.rows_of(source)]

    def positions(self, places: int) -> Tensor:
        """`(m · G,)`: where each row's next token stands in its text."""
        behind = self.lengths[:places, None] + self.steps[: places * self.grid.copies].view(places, -1)
        return behind.flatten()

    def copied(self, grid: Grid) -> StaticCache:
        """The same rows at the same places in a larger grid."""
        larger = StaticCache(grid, self.lengths.device)
        groups, mine = self.grid.groups, self.grid
        larger.lengths[:groups] = self.lengths
        larger.steps.view(grid.groups, -1)[:groups, : mine.copies] = self.steps.view(groups, -1)
        for number, layer in self.layers.items():
            kv_heads = layer.prefix_key.shape[1]
            room = larger._room(number, layer.prefix_key, layer.prefix_value)
            for old, new in zip(layer.prefixes, room.prefixes, strict=True):
                new[:groups, :, : mine.prompt_tokens] = old
            for old, new in zip(layer.suffixes, room.suffixes, strict=True):
                old, new = old.view(*mine.suffix(kv_heads), -1), new.view(*grid.suffix(kv_heads), -1)
                new[:groups, :, : mine.copies, : mine.new_tokens] = old
        return larger

    def _room(self, layer: int, key: Tensor, value: Tensor) -> _Layer:
        if layer not in self.layers:
            grid, kv_heads = self.grid, key.shape[1]
            sizes = key.shape[-1], value.shape[-1]
            # Zeros, not whatever was there: a slot that is masked has weight 0, but 0 times NaN is NaN.
            prefix = [key.new_zeros(grid.groups, kv_heads, grid.prompt_tokens, size) for size in sizes]
            suffix = [key.new_zeros(grid.rows * kv_heads * grid.new_tokens, size) for size in sizes]
            self.layers[layer] = _Layer(*prefix, *suffix)
        return self.layers[layer]


class StaticContext:
    """Attention of one step of the first `places` places, over the first `width` slots of the suffix.

    Every row's `steps` must be below `width`.
    """

    def __init__(self, cache: StaticCache, places: int, width: int) -> None:
        self._cache = cache
        self._places, self._width = places, width
        self._slots: dict[int, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `AttentionContext.attend`; N is the rows of the places, in their order."""
        room, grid, places, width = self._cache.layers[layer], self._cache.grid, self._places, self._width
        kv_heads, shared = key.shape[1], query.shape[1] // key.shape[1]
        slots = self._slots_of(kv_heads)
        room.suffix_key.index_copy_(0, slots, self._enter(key, kv_heads).flatten(0, 3))
        room.suffix_value.index_copy_(0, slots, self._enter(value, kv_heads).flatten(0, 3))
        keys, values = (x.view(*grid.suffix(kv_heads), -1)[:places, :, :, :width].flatten(0, 2) for x in room.suffixes)
        asked = self._enter(query, kv_heads)  # (m, h_kv, G, s, d): one matrix per group and head, or per row
        by_group, by_row = asked.view(places * kv_heads, -1, query.shape[2]), asked.flatten(0, 2)
        prefix_key, prefix_value = room.prefix_key[:places].flatten(0, 1), room.prefix_value[:places].flatten(0, 1)
        scores = (places, kv_heads, grid.copies, shared, -1)
        before, own = _weights(
            torch.bmm(by_group, prefix_key.transpose(1, 2)).view(scores),
            torch.bmm(by_row, keys.transpose(1, 2)).view(scores),
            self._cache.lengths[:places],
            self._cache.steps[: places * grid.copies].view(places, -1),
            scaling,
            window,
        )
        attended = torch.bmm(before.view(*by_group.shape[:2], -1), prefix_value).view(*asked.shape[:4], -1)
        attended = attended + torch.bmm(own.view(*by_row.shape[:2], -1), values).view(attended.shape)
        return attended.transpose(1, 2).reshape(places * grid.copies, kv_heads * shared, -1)

    def _enter(self, x: Tensor, kv_heads: int) -> Tensor:
        """`(n, h, d)` -> `(m, h_kv, G, h / h_kv, d)`, contiguous."""
        grid = self._cache.grid
        return x.reshape(self._places, grid.copies, kv_heads, -1, x.shape[2]).transpose(1, 2).contiguous()

    def _slots_of(self, kv_heads: int) -> Tensor:
        """`(m · h_kv · G,)`: where in the suffix each row's next key stands, for every key head."""
        if kv_heads not in self._slots:
            grid, places = self._cache.grid, self._places
            steps = self._cache.steps[: places * grid.copies].view(places, 1, -1).expand(-1, kv_heads, -1)
            rows = torch.arange(places * kv_heads * grid.copies, device=steps.device)
            self._slots[kv_heads] = rows * grid.new_tokens + steps.flatten()
        return self._slots[kv_heads]


@compiled
def _weights(
    before: Tensor, own: Tensor, lengths: Tensor, steps: Tensor, scaling: float, window: int | None
) -> tuple[Tensor, Tensor]:
    """One softmax over the scores `(m, h_kv, G, s, P)` of the prefix and `(m, h_kv, G, s, w)` of the suffix.

    lengths (m,) of the prefixes; steps (m, G), the slot of the newest token, which every row sees: no row is empty.
    """
    exact = torch.promote_types(before.dtype, torch.float32)
    place = torch.arange(before.shape[-1], device=before.device)
    slot = torch.arange(own.shape[-1], device=own.device)
    sees_before = (place < lengths[:, None, None]).expand(*steps.shape, -1)
    sees_own = slot <= steps[..., None]
    if window is not None:
        sees_before = sees_before & ((lengths[:, None] + steps)[..., None] - place < window)
        sees_own = sees_own & (steps[..., None] - slot < window)
    lowest = float("-inf")
    left = torch.where(sees_before[:, None, :, None], before.to(exact) * scaling, lowest)
    right = torch.where(sees_own[:, None, :, None], own.to(exact) * scaling, lowest)
    top = torch.maximum(left.amax(-1, keepdim=True), right.amax(-1, keepdim=True))
    left, right = (left - top).exp(), (right - top).exp()
    total = left.sum(-1, keepdim=True) + right.sum(-1, keepdim=True)
    return (left / total).to(before.dtype), (right / total).to(own.dtype)
