"""Attention of one decoding step over keys and values in pages.

A page holds `PAGE` tokens of one row, or of a prompt whose rows share it. All pages of a layer are one tensor
`(pages · PAGE, h_kv, d)`; a row's *places* 0, 1, ... are what its pages hold, in the order in which its line of the
table names them. The row sees the places from `starts` up to `ends`: a prompt stands at the end of its pages, so that
the row's own tokens follow it without a gap.

The functions here are plain torch, for any device and dtype, with shapes that depend on no data; `triton_kernels` has
the same ones for a GPU.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from oncurve.base.output import warn
from oncurve.models.attention.packed_rows import additive, sdpa

PAGE = 32
"""Tokens of a page: half of one is lost at the end of each row."""

Layers = Mapping[int, Sequence[Tensor]]
"""Keys and values of every layer, `(pages · PAGE, h_kv, d)`."""


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Write `key, value (n, h_kv, d)` into the pages, at `places (n,)`."""
    keys.index_copy_(0, places, key)
    values.index_copy_(0, places, value)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, starts: Tensor, ends: Tensor, page: int, scale: float
) -> Tensor:
    """Return `(n, h, d_v)`: each row's attention over its places from `starts` up to `ends`.

    query          (n, h, d).
    keys, values   (slots, h_kv, d). A row's place p is slot `table[row, p // page] · page + p % page`.
    table          (n, columns), pages by number.
    starts, ends   (n,), never equal.
    """
    inside = torch.arange(page, device=query.device)
    places = (table.to(torch.int64)[:, :, None] * page + inside).flatten(1)
    at = torch.arange(places.shape[1], device=query.device)
    seen = (at >= starts[:, None]) & (at < ends[:, None])
    # Weight 0 times what a freed page held, which may not be finite.
    found_keys, found_values = (x[places].masked_fill(~seen[:, :, None, None], 0.0) for x in (keys, values))
    return sdpa(query[:, None], found_keys, found_values, scale, additive(seen, query.dtype)[:, None, None])[:, 0]


@functools.cache
def functions_for(device: str, dtype: torch.dtype, same: bool) -> tuple[Callable[..., None], Callable[..., Tensor]]:
    """Return `(write, attend)`: on CUDA Triton's kernels, where it is usable; `same`: keys are as wide as values."""
    if device == "cuda" and dtype.itemsize <= 4 and same:
        try:
            from oncurve.models.decode import triton_kernels
        except ImportError as error:
            warn(f"decoding without Triton's kernels, which is slower: {error}")
        else:
            return triton_kernels.write, triton_kernels.attend
    return write, attend


class PagedContext:
    """Attention of one step of n rows: each writes its new token, and sees it and what it saw before.

    layers         the pages
    table          (n, columns)
    starts, ends   (n,) the places that a row sees, but for a window
    places         (n,) the slot that the new token is written to
    """

    def __init__(self, layers: Layers, table: Tensor, starts: Tensor, ends: Tensor, places: Tensor) -> None:
        self._layers, self._table, self._ends, self._places = layers, table, ends, places
        self._starts: dict[int | None, Tensor] = {None: starts}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer."""
        keys, values = self._layers[layer]
        into_pages, over_pages = functions_for(query.device.type, query.dtype, key.shape == value.shape)
        into_pages(key, value, keys, values, self._places)
        if window is not None and window not in self._starts:
            self._starts[window] = torch.maximum(self._starts[None], self._ends - window)
        return over_pages(query, keys, values, self._table, self._starts[window], self._ends, PAGE, scale)
