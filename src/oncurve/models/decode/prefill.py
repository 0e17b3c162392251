"""Prefill: prompts once each, in pieces of bounded size; every layer's keys and values are kept.

A piece is whole prompts of similar length, which have at most `at_once` tokens as attention pads them. A longer prompt
comes by stretches: a stretch attends to the earlier ones in what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.models.attention.hook import AttentionContext
from oncurve.models.attention.packed_rows import PromptAttention, RowLayout, additive, sdpa

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
            count, longest = len(self.lengths), self.longest
            self.layers[layer] = (
                key.new_zeros(count, key.shape[-2], longest, key.shape[-1]),
                value.new_zeros(count, value.shape[-2], longest, value.shape[-1]),
            )
        return self.layers[layer]

    def of(self, prompts: Tensor) -> Prefixes:
        """Return the caches of some prompts, by index; the others' memory is freed once these replace the whole."""
        some = Prefixes(self.lengths[prompts])
        chosen = (prompts, slice(None), slice(some.longest))
        some.layers = {layer: (key[chosen], value[chosen]) for layer, (key, value) in self.layers.items()}
        return some

    def put_prompts(self, layer: int, prompts: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep `key, value (m, p, h_kv, d)`: whole prompts, by their indices."""
        keys, values = self._layer(layer, key, value)
        keys[prompts, :, : key.shape[1]] = key.transpose(1, 2)
        values[prompts, :, : key.shape[1]] = value.transpose(1, 2)

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

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer."""
        attended, keys, values = self._attention.attend(query, key, value, scaling, window)
        self._prefixes.put_prompts(layer, self._prompts, keys, values)
        return attended


class StretchContext:
    """A stretch of one prompt, after what is kept of the same prompt."""

    def __init__(self, prefixes: Prefixes, prompt: int, start: int, end: int) -> None:
        self._prefixes = prefixes
        self._prompt, self._start, self._end = prompt, start, end
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer."""
        keys, values = self._prefixes.put_stretch(layer, self._prompt, self._start, key, value)
        first = 0 if window is None else max(0, self._start + 1 - window)
        mask = self._mask(window, query)[:, first:]
        return sdpa(query[None], keys[:, first:], values[:, first:], scaling, mask)[0]

    def _mask(self, window: int | None, like: Tensor) -> Tensor:
        """Return `(end - start, end)`: to the past, and no further than the window."""
        if window not in self._masks:
            position = torch.arange(self._end, device=like.device)
            distance = position[self._start :, None] - position[None, :]
            allowed = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self._masks[window] = additive(allowed, like.dtype)
        return self._masks[window]


@dataclass(frozen=True)
class _Piece:
    """Prompts by index; of a single one, possibly, only the stretch from `start` to `end`."""

    prompts: list[int]
    start: int = 0
    end: int | None = None


def prefill(
    run: Run, prompts: Sequence[Tensor], device: torch.device, at_once: int | None = None
) -> tuple[Tensor, Prefixes]:
    """Return the hidden states `(M, H)` of the prompts' last tokens, and what is kept of the prompts.

    at_once   the most tokens of a piece; None: `PIECE_TOKENS`
    """
    counts = [prompt.shape[0] for prompt in prompts]
    prefixes = Prefixes(torch.tensor(counts, device=device))
    last: dict[int, Tensor] = {}
    for piece in _pieces(counts, at_once or PIECE_TOKENS):
        if piece.end is None:
            chosen = torch.tensor(piece.prompts, device=device)
            whole = PrefillContext(prefixes, chosen)
            ids = torch.cat([prompts[index] for index in piece.prompts]).to(device)
            hidden = run(ids, whole.rows.positions(), whole)[whole.rows.lengths.cumsum(0) - 1]
            last.update(zip(piece.prompts, hidden, strict=True))
        else:
            (index,) = piece.prompts
            stretch = StretchContext(prefixes, index, piece.start, piece.end)
            positions = torch.arange(piece.start, piece.end, device=device)
            # The last stretch's last token predicts the first token of the completions: it overwrites the others'.
            last[index] = run(prompts[index][piece.start : piece.end].to(device), positions, stretch)[-1]
    return torch.stack([last[index] for index in range(len(prompts))]), prefixes


def _pieces(counts: Sequence[int], most: int) -> Iterator[_Piece]:
    """Return all prompts by piece, from the longest on, so that those of a piece are about equally long."""
    gathered: list[int] = []
    for index in sorted(range(len(counts)), key=lambda index: -counts[index]):
        if counts[index] > most:
            for start in range(0, counts[index], most):
                yield _Piece([index], start, min(start + most, counts[index]))
            continue
        if gathered and (len(gathered) + 1) * counts[gathered[0]] > most:
            yield _Piece(gathered)
            gathered = []
        gathered.append(index)
    if gathered:
        yield _Piece(gathered)
