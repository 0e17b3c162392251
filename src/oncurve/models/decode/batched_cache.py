"""A KV cache for one new token per row, where rows began at different times.

Rows that begin together are a *cohort*: their groups' prefixes, and what each row has written since, which is equally
long for all of them. So a cohort's attention is two calls whatever its rows: all rows of a group over the group's
prefix, which is stored once and read once, and each row over its own suffix. Only attention depends on cohorts; every
other layer sees all rows one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.models.attention.merge import attend_part, merge_softmax
from oncurve.models.decode.prefill import Prefixes

_FIRST_CAPACITY = 64


class _Layout:
    """The places of n rows, in order of their M groups, in `(M, G)`, G the rows of the largest group."""

    def __init__(self, groups: Tensor, group_count: int) -> None:
        counts = torch.bincount(groups, minlength=group_count)
        self.groups, self.copies = group_count, int(counts.max())
        self.uniform = int(counts.min()) == self.copies
        within = torch.arange(len(groups), device=groups.device) - (counts.cumsum(0) - counts)[groups]
        self._slots = groups * self.copies + within

    def to_groups(self, x: Tensor, kv_heads: int) -> Tensor:
        """Rearrange queries `(n, h, d)` -> `(M, h_kv, G · h / h_kv, d)`: all that attend to the same keys become one
        matrix.
        """
        size = x.shape[2]
        if not self.uniform:
            x = x.new_zeros(self.groups * self.copies, *x.shape[1:]).index_copy_(0, self._slots, x)
        return x.view(self.groups, self.copies, kv_heads, -1, size).transpose(1, 2).flatten(2, 3)

    def to_rows(self, x: Tensor) -> Tensor:
        """Return `(M, h_kv, G · s, ...)` -> `(n, s, h_kv, ...)`: a view of what `attend_part` gives, for equal
        groups.
        """
        x = x.transpose(1, 2)
        x = x.reshape(self.groups * self.copies, -1, *x.shape[2:])
        return x if self.uniform else x.index_select(0, self._slots)


class _Suffix:
    """Keys or values of what the rows have written: `(n, h_kv, capacity, d)`, capacity doubling up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored = torch.empty(0)

    def append(self, new: Tensor, step: int) -> Tensor:
        """Write `new (n, h_kv, d)` at `step`; all that is written, `(n, h_kv, step + 1, d)`."""
        if step >= (self._stored.shape[2] if step else 0):
            capacity = min(max(2 * step, _FIRST_CAPACITY), self._limit)
            grown = new.new_empty(*new.shape[:2], capacity, new.shape[2])
            if step:
                grown[:, :, :step] = self._stored
            self._stored = grown
        self._stored[:, :, step] = new
        return self._stored[:, :, : step + 1]

    def keep(self, rows: Tensor, step: int) -> None:
        """Go on with these rows."""
        if step:
            kept = self._stored.new_empty(len(rows), *self._stored.shape[1:])
            kept[:, :, :step] = self._stored[:, :, :step].index_select(0, rows)
            self._stored = kept


class Cohort:
    """Rows that began together; `groups (n,)` is the prefix of each, in ascending order."""

    def __init__(self, prefixes: Prefixes, groups: Tensor, limit: int) -> None:
        self.rows = len(groups)
        self.step = 0
        self._limit = limit
        self._prefixes = prefixes
        self._groups = groups
        self._layout = _Layout(groups, len(prefixes.lengths))
        self._suffixes: dict[int, tuple[_Suffix, _Suffix]] = {}
        self._masks: dict[int | None, Tensor | None] = {}
        self._reset_masks()

    def _reset_masks(self) -> None:
        """Forget the masks, which depend on the prefixes that are left."""
        self._shortest, self._masks = int(self._prefixes.lengths.min()), {}

    def advance(self) -> None:
        """The token just run is written in every layer."""
        self.step += 1
        self._masks = {window: mask for window, mask in self._masks.items() if window is None}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer; N is the number of this cohort's rows."""
        if layer not in self._suffixes:
            self._suffixes[layer] = (_Suffix(self._limit), _Suffix(self._limit))
        suffix_key, suffix_value = self._suffixes[layer]
        keys, values = suffix_key.append(key, self.step), suffix_value.append(value, self.step)
        first = 0 if window is None else max(0, self.step + 1 - window)
        kv_heads = key.shape[1]
        asked = query.view(self.rows, kv_heads, -1, query.shape[2])
        own, own_lse = attend_part(asked, keys[:, :, first:], values[:, :, first:], scaling)
        own = own.transpose(1, 2)  # (n, s, h_kv, d): the order in memory of what attention gives
        prefix_key, prefix_value = self._prefixes.layers[layer]
        shared, shared_lse = attend_part(
            self._layout.to_groups(query, kv_heads), prefix_key, prefix_value, scaling, self._mask(window, query)
        )
        prefix, prefix_lse = self._layout.to_rows(shared), self._layout.to_rows(shared_lse)
        return merge_softmax(prefix, prefix_lse, own, own_lse.transpose(1, 2)).transpose(1, 2).flatten(1, 2)

    def _mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """Return `(M, 1, 1, P)` to add to the prefix scores: prompts shorter than P, keys out of the window."""
        longest = self._prefixes.longest
        if window is not None and window > longest + self.step:
            window = None
        if window is None and self._shortest == longest:
            return None
        if window not in self._masks:
            lengths = self._prefixes.lengths[:, None]
            position = torch.arange(longest, device=like.device)[None, :]
            hidden = position >= lengths
            if window is not None:
                hidden = hidden | (lengths + self.step - position >= window)
            lowest = torch.finfo(like.dtype).min
            self._masks[window] = like.new_zeros(hidden.shape).masked_fill_(hidden, lowest)[:, None, None]
        return self._masks[window]

    def keep(self, rows: Tensor) -> None:
        """Go on with these of the rows, at least one; prefixes of groups without rows are freed."""
        if len(rows) == self.rows:
            return
        kept, self._groups = torch.unique_consecutive(self._groups[rows], return_inverse=True)
        if len(kept) < len(self._prefixes.lengths):
            self._prefixes = self._prefixes.of(kept)
            self._reset_masks()
        self._layout = _Layout(self._groups, len(kept))
        for pair in self._suffixes.values():
            for suffix in pair:
                suffix.keep(rows, self.step)
        self.rows = len(rows)


class DecodeContext:
    """The attention of all cohorts' rows, one cohort after another."""

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        self._cohorts = cohorts
        self._sizes = [cohort.rows for cohort in cohorts]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer; N is the number of rows."""
        if len(self._cohorts) == 1:
            return self._cohorts[0].attend(layer, query, key, value, scaling, window)
        parts = zip(self._cohorts, *(torch.split(x, self._sizes) for x in (query, key, value)), strict=True)
        return torch.cat([cohort.attend(layer, *part, scaling, window) for cohort, *part in parts])
