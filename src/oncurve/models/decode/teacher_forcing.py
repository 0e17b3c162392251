"""The logits with which a token loop decodes given completions, for the load probe."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oncurve.models.causal import DecodeRequest, TokenLoop
from oncurve.ops import at_least_float32
from oncurve.randomness import row_keys, uniform_at


def forced_logits(
    loop: TokenLoop, prompts: Sequence[Tensor], ids: Tensor, lengths: Tensor | None = None, at_once: int | None = None
) -> Tensor:
    """Return logits `(M, G, T, V)`, float32 at least, that predict each token of the completions `ids (M, G, T)`.

    lengths   (M, G) in 0..T: row by row, so many tokens are decoded, and later logits mean nothing; None: T
    at_once   `DecodeRequest.max_concurrent`

    The sampler draws the given tokens, so this is the very loop that rollout uses, caches included.
    """
    groups, copies, longest = ids.shape
    keys = row_keys(0, 0, torch.arange(groups).repeat_interleave(copies), torch.arange(copies).repeat(groups))
    draw = _Forced(keys.to(ids.device), ids.flatten(0, 1))
    # One token more than is read: a row that has ended may be drawn for again at its last position.
    limits = torch.full((groups, copies), longest) if lengths is None else lengths.cpu()
    loop(DecodeRequest(prompts, keys.view(groups, copies), limits + 1, longest + 1, (), draw, None, at_once))
    return draw.logits[:-1].view(groups, copies, longest + 1, -1)[:, :, :-1]


class _Forced:
    """A `Draw` that gives known tokens and keeps the logits, in operations that a CUDA graph can hold.

    A uniform tells which token of which row is drawn, since no two of them are equal. keys (n,); ids (n, T).
    """

    def __init__(self, keys: Tensor, ids: Tensor) -> None:
        positions = torch.arange(ids.shape[1] + 1, device=ids.device)
        self._uniforms = uniform_at(keys[:, None], positions[None, :]).flatten()
        self._ids = torch.cat([ids, ids[:, :1]], 1).flatten()
        self.logits = torch.empty(0)
        """`(n · (T + 1) + 1, V)`; the last row is of rows that are no longer there."""

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the known tokens, with log-probabilities of 0."""
        if not len(self.logits):
            self.logits = at_least_float32(logits).new_zeros(len(self._ids) + 1, logits.shape[1])
        same = uniforms[:, None] == self._uniforms[None, :]
        token = same.to(torch.int64).argmax(1)
        self.logits.index_copy_(0, torch.where(same.any(1), token, len(self._ids)), at_least_float32(logits))
        return self._ids[token], self.logits.new_zeros(len(token))
