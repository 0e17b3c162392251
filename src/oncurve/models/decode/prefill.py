"""Prefill: prompts once each, in pieces of bounded size; every layer's keys and values are kept.

A piece is whole prompts of similar length, which have at most `at_once` tokens as attention pads them. A longer prompt
comes by stretches: a stretch attends to the earlier ones in what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oncurve.models.attention.hook import AttentionContext
from oncurve.models.attention.packed_rows import PromptAttention, RowLayout, causal, sdpa
from oncurve.models.layers.lengths import batches_by_length

Run = Callable[[Tensor, Tensor, AttentionContext], Tensor]
"""`(ids (N,), positions (N,), context) -> hidden (N, H)`: the model's body."""

# Enough for matrix products at full speed on a CPU; beyond it a piece only takes more memory.
PIECE_TOKENS = 4096


class Prefixes:
    """Every layer's keys and values of M prompts, `(M, h_kv, P, d)`, zeros beyond a prompt's length."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.longest = int(lengths.max())
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def _layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's keys and values to write into, of the sizes of `key` and `value (..., h_kv, d)`."""
        if layer not in self.layers:
            sizes = (len(self.lengths), key.shape[-2], self.longest)
            self.layers[layer] = key.new_zeros(*sizes, key.shape[-1]), value.new_zeros(*sizes, value.shape[-1])
        return self.layers[layer]

    def of(self, prompts: Tensor) -> Prefixes:
        """Return the caches of some prompts, by index; the others' memory is freed once these replace the whole."""
        some = Prefixes(self.lengths[prompts])
        chosen = (prompts, slice(None), slice(some.longest))
        some.layers = {layer: (key[chosen], value[chosen]) for layer, (key, value) in self.layers.items()}
        return some

    def put_prompts(self, layer: int, prompts: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep `key, value (m, p, h_kv, d)`: whole prompts, by their indices."""
        for stored, new in zip(self._layer(layer, key, value), (key, value), strict=True):
            stored[prompts, :, : new.shape[1]] = new.transpose(1, 2)

    def put_stretch(self, layer: int, prompt: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep `key, value (p, h_kv, d)` of one prompt from `start` on; all of it so far, `(1, start + p, h_kv, d)`."""
        keys, values = self._layer(layer, key, value)
        end = start + key.shape[0]
        keys[prompt, :, start:end] = key.transpose(0, 1)
        values[prompt, :, start:end] = value.transpose(0, 1)
        return keys[prompt : prompt + 1, :, :end].transpose(1, 2), values[prompt : prompt + 1, :, :end].transpose(1, 2)


class PrefillContext:
    """Whole prompts one after another; `prompts` are their indices in `prefixes`."""

    def __init__(self, prefixes: Prefixes, prompts: Tensor) -> None:
        self.rows = RowLayout(prefixes.lengths[prompts])
        self._prefixes = prefixes
        self._prompts = prompts
        self._attention = PromptAttention(self.rows)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer."""
        attended, keys, values = self._attention.attend(query, key, value, scale, window)
        self._prefixes.put_prompts(layer, self._prompts, keys, values)
        return attended


class StretchContext:
    """A stretch of one prompt, after what is kept of the same prompt."""

    def __init__(self, prefixes: Prefixes, prompt: int, start: int, end: int) -> None:
        self._prefixes = prefixes
        self._prompt, self._start, self._end = prompt, start, end
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer."""
        keys, values = self._prefixes.put_stretch(layer, self._prompt, self._start, key, value)
        first = 0 if window is None else max(0, self._start + 1 - window)
        mask = self._mask(window, query)[:, first:]
        return sdpa(query[None], keys[:, first:], values[:, first:], scale, mask)[0]

    def _mask(self, window: int | None, like: Tensor) -> Tensor:
        """Return `(end - start, end)`: to the past, and no further than the window."""
        if window not in self._masks:
            self._masks[window] = causal(self._start, self._end, window, like)
        return self._masks[window]


def prefill(
    run: Run, prompts: Sequence[Tensor], device: torch.device, at_once: int | None = None
) -> tuple[Tensor, Prefixes]:
    """Return the hidden states `(M, H)` of the prompts' last tokens, and what is kept of the prompts.

    at_once   the most tokens of a piece; None: `PIECE_TOKENS`
    """
    counts, most = [len(prompt) for prompt in prompts], at_once or PIECE_TOKENS
    prefixes = Prefixes(torch.tensor(counts, device=device))
    last: dict[int, Tensor] = {}
    for piece in batches_by_length(counts, most):
        if counts[piece[0]] <= most:
            whole = PrefillContext(prefixes, torch.tensor(piece, device=device))
            ids = torch.cat([prompts[index] for index in piece]).to(device)
            hidden = run(ids, whole.rows.positions(), whole)[whole.rows.lengths.cumsum(0) - 1]
            last.update(zip(piece, hidden, strict=True))
            continue
        (index,) = piece
        for start in range(0, counts[index], most):
            end = min(start + most, counts[index])
            stretch = StretchContext(prefixes, index, start, end)
            positions = torch.arange(start, end, device=device)
            # The last stretch's last token predicts the first token of the completions: it overwrites the others'.
            last[index] = run(prompts[index][start:end].to(device), positions, stretch)[-1]
    return torch.stack([last[index] for index in range(len(prompts))]), prefixes
