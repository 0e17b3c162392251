"""The cached decoder: prefill computes each prompt once per group, then every step adds one token to every live row.

Keys and values live in two places: the *prefix*, once per group, `(M, h_kv, P, d)`, and the *suffix*, per row, which
grows. One step of attention is four batched products: scores against both, one softmax over both, and the two weighted
sums.

The batch of these products is `(group, kv head, row of the group)`, in that order: then the scores of a group's rows
against its prefix are one matrix product per kv head and need no shuffling beside the suffix scores. Where groups have
different numbers of live rows, `slots` says where each row stands in the padded `(M, h_kv, G)`; only prefix scores are
padded so, never the suffix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oncurve.models.causal import check_decoder
from oncurve.models.packed import PromptAttention, Rows, additive

__all__ = ["CachedDecoder", "DecodeContext", "PrefillContext"]

_FIRST_CAPACITY = 64
_CHUNK = 16  # suffix slots are scored by the chunk, a width that fills vector registers; the surplus is cut off

Run = Callable[[Tensor, Tensor, "PrefillContext | DecodeContext"], Tensor]
"""`(ids (N,), positions (N,), context) -> hidden (N, H)`: the model's body."""


class PrefillContext:
    """Prompts one after another; every layer's keys and values are kept as `(M, h_kv, P, d)`."""

    def __init__(self, rows: Rows) -> None:
        self._attention = PromptAttention(rows)
        self.prefixes: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `AttentionContext.attend`."""
        attended, keys, values = self._attention.attend(query, key, value, scaling, window)
        self.prefixes[layer] = (keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous())
        return attended


class _Order:
    """How n live rows, in order of their groups, stand in `(group, kv head, row of the group)`."""

    def __init__(self, groups: Tensor, group_count: int, kv_heads: int) -> None:
        counts = torch.bincount(groups, minlength=group_count)
        self.groups, self.kv_heads, self.rows = group_count, kv_heads, len(groups)
        self.copies = int(counts.max())
        self.uniform = int(counts.min()) == self.copies
        shape = (group_count, kv_heads, self.copies)
        place = torch.arange(len(groups), device=groups.device) - (counts.cumsum(0) - counts)[groups]
        heads = torch.arange(kv_heads, device=groups.device)
        # Slot of (row, kv head) in the padded (M, h_kv, G); sorted, the slots are the order of the batch.
        slot = ((groups[:, None] * kv_heads + heads[None, :]) * self.copies + place[:, None]).flatten()
        self.slots, self.gather = slot.sort()
        self.scatter = torch.empty_like(self.gather)
        self.scatter[self.gather] = torch.arange(len(slot), device=slot.device)
        self.padded = shape[0] * shape[1] * shape[2]

    def enter(self, x: Tensor) -> Tensor:
        """`(n, h, d)` -> `(n · h_kv, h / h_kv, d)` in the order of the batch."""
        shared, size = x.shape[1] // self.kv_heads, x.shape[2]
        if self.uniform:
            x = x.reshape(self.groups, self.copies, self.kv_heads, shared, size)
            return x.transpose(1, 2).reshape(-1, shared, size)
        return x.reshape(-1, shared, size).index_select(0, self.gather)

    def leave(self, x: Tensor) -> Tensor:
        """The opposite of `enter`: `(n, h, d)`."""
        shared, size = x.shape[1:]
        if self.uniform:
            x = x.view(self.groups, self.kv_heads, self.copies, shared, size).transpose(1, 2)
        else:
            x = x.index_select(0, self.scatter)
        return x.reshape(self.rows, self.kv_heads * shared, size)

    def by_group(self, x: Tensor) -> Tensor:
        """`(n · h_kv, s, k)` -> `(M · h_kv, G · s, k)`, zeros where a group has fewer rows than another."""
        if not self.uniform:
            x = x.new_zeros(self.padded, *x.shape[1:]).index_copy_(0, self.slots, x)
        return x.view(self.groups * self.kv_heads, self.copies * x.shape[1], x.shape[2])

    def by_row(self, x: Tensor, shared: int) -> Tensor:
        """The opposite of `by_group`: `(n · h_kv, s, k)`."""
        x = x.view(self.padded, shared, x.shape[2])
        return x if self.uniform else x.index_select(0, self.slots)


class _Suffix:
    """Keys or values of what the rows have written: `(n · h_kv, d, capacity)`, capacity doubling up to a limit.

    Tokens run along the last dimension: a CPU's batched products with one or two queries a key head are two to five
    times as fast so as with tokens before features, for keys and for values (measured, MKL, fp32 and bf16).
    """

    def __init__(self, limit: int) -> None:
        self._limit = -(-limit // _CHUNK) * _CHUNK
        self.stored = torch.empty(0)

    def append(self, new: Tensor, step: int) -> None:
        """Write `new (n · h_kv, 1, d)` at `step`."""
        if step >= (self.stored.shape[2] if step else 0):
            grown = new.new_zeros(new.shape[0], new.shape[2], min(max(2 * step, _FIRST_CAPACITY), self._limit))
            if step:
                grown[:, :, :step] = self.stored[:, :, :step]
            self.stored = grown
        self.stored[:, :, step] = new[:, 0]

    def keep(self, batch: Tensor) -> None:
        """Go on with these entries of the batch."""
        self.stored = self.stored.index_select(0, batch)


class DecodeContext:
    """One new token a row, behind the group's prefix and the row's own suffix."""

    def __init__(self, prefixes: dict[int, tuple[Tensor, Tensor]], lengths: Tensor, groups: Tensor, limit: int) -> None:
        self._prefixes = prefixes
        self._suffixes = {layer: (_Suffix(limit), _Suffix(limit)) for layer in prefixes}
        self._lengths = lengths
        self._longest = int(lengths.max())
        self._ragged = int(lengths.min()) < self._longest
        self._orders: dict[int, _Order] = {}
        self._groups = groups
        self._masks: dict[int | None, Tensor | None] = {}
        self.step = 0

    def advance(self) -> None:
        """The token just run is written in every layer."""
        self.step += 1
        self._masks = {window: mask for window, mask in self._masks.items() if window is None}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `AttentionContext.attend`; N is the number of live rows."""
        order = self._order(key.shape[1])
        prefix_key, prefix_value = self._prefixes[layer]
        suffix_key, suffix_value = self._suffixes[layer]
        suffix_key.append(order.enter(key), self.step)
        suffix_value.append(order.enter(value), self.step)
        first = 0 if window is None else max(0, self.step + 1 - window)
        asked = order.enter(query * scaling)
        shared, longest = asked.shape[1], prefix_key.shape[2]

        prefix_scores = torch.bmm(order.by_group(asked), prefix_key.flatten(0, 1).transpose(1, 2))
        mask = self._mask(window, prefix_scores)
        if mask is not None:
            prefix_scores.view(mask.shape[0], -1, longest).add_(mask)
        last = self.step + 1
        keys = suffix_key.stored[:, :, first : -(-last // _CHUNK) * _CHUNK]
        suffix_scores = torch.bmm(asked, keys)[:, :, : last - first]
        scores = torch.cat([order.by_row(prefix_scores, shared), suffix_scores], 2)
        # bf16 scores are normalised in float32, as transformers' own attention does.
        weights = torch.softmax(scores, -1, dtype=torch.float32 if scores.dtype.itemsize < 4 else None).to(value.dtype)
        from_prefix = torch.bmm(order.by_group(weights[:, :, :longest]), prefix_value.flatten(0, 1))
        from_suffix = torch.bmm(suffix_value.stored[:, :, first:last], weights[:, :, longest:].transpose(1, 2))
        attended = order.by_row(from_prefix, shared) + from_suffix.transpose(1, 2)
        return order.leave(attended)

    def _order(self, kv_heads: int) -> _Order:
        if kv_heads not in self._orders:
            self._orders[kv_heads] = _Order(self._groups, len(self._lengths), kv_heads)
        return self._orders[kv_heads]

    def _mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """`(M, 1, P)` to add to the prefix scores: prompts shorter than P, keys out of the window."""
        if window is not None and window > self._longest + self.step:
            window = None
        if window is None and not self._ragged:
            return None
        if window not in self._masks:
            place = torch.arange(self._longest, device=like.device)[None, :]
            allowed = place < self._lengths[:, None]
            if window is not None:
                allowed = allowed & (self._lengths[:, None] + self.step - place < window)
            self._masks[window] = additive(allowed, like.dtype)[:, None]
        return self._masks[window]

    def keep(self, rows: Tensor) -> None:
        """Go on with these of the live rows; prefixes of groups without rows are freed and the groups renumbered."""
        live, renumbered = torch.unique_consecutive(self._groups[rows], return_inverse=True)
        if len(live) < len(self._lengths):
            self._lengths = self._lengths[live]
            self._longest = int(self._lengths.max())
            self._ragged = int(self._lengths.min()) < self._longest
            kept = (live, slice(None), slice(self._longest))
            self._prefixes = {layer: (k[kept], v[kept]) for layer, (k, v) in self._prefixes.items()}
        before, self._orders, self._masks, self._groups = self._orders, {}, {}, renumbered
        for layer, pair in self._suffixes.items():
            kv_heads = self._prefixes[layer][0].shape[1]
            if self.step:
                place = before[kv_heads].scatter.view(-1, kv_heads)[rows].flatten()
                batch = place[self._order(kv_heads).gather]
                for suffix in pair:
                    suffix.keep(batch)


class CachedDecoder:
    """A `Decoder` with a cache. Never records a gradient."""

    @torch.no_grad()
    def __init__(
        self, run: Run, prompts: Sequence[Tensor], copies: Sequence[int], max_new_tokens: int, device: torch.device
    ) -> None:
        check_decoder(prompts, copies)
        self._run = run
        lengths = torch.tensor([prompt.shape[0] for prompt in prompts], device=device)
        rows = Rows(lengths)
        prefill = PrefillContext(rows)
        hidden = run(torch.cat([prompt.to(device) for prompt in prompts]), rows.positions(), prefill)
        self.first_hidden = hidden[lengths.cumsum(0) - 1]
        self.groups = torch.repeat_interleave(
            torch.arange(len(prompts), device=device), torch.tensor(list(copies), device=device)
        )
        self._positions = lengths[self.groups]
        self._context = DecodeContext(prefill.prefixes, lengths, self.groups, max_new_tokens)

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """See `Decoder.step`."""
        hidden = self._run(ids.to(self._positions.device), self._positions, self._context)
        self._context.advance()
        self._positions = self._positions + 1
        return hidden

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """See `Decoder.keep`."""
        if len(rows) == len(self.groups):
            return
        rows = rows.to(self.groups.device)
        self._context.keep(rows)
        self.groups, self._positions = self.groups[rows], self._positions[rows]
