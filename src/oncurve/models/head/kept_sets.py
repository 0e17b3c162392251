"""The kept sets of truncated sampling, for the head: logits outside a token's set count as impossible.

    log q(a | K) = z_a/τ - log Σ_{k∈K} exp(z_k/τ)        K as the sampler recorded it

Logits outside K are replaced, block by block or chunk by chunk, so that neither logits nor masks `(B, T, V)` exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.types import TrainBatch, sent

FAR = -1e30
"""A logit below all others, at any temperature; finite in bfloat16, too, so that 0 times it is 0."""

NEGLIGIBLE = -80.0
"""So many nats below the likeliest kept token nothing changes a sum in float64. Below -87 float32 has subnormal numbers
alone, and `exp` takes ten times as long."""


@dataclass(frozen=True)
class KeptSets:
    """The sets of N tokens; `device` is that of the logits.

    ids      (m,)         the ids that are listed, token after token, in the host's memory.
    counts   (N,)         how many of them each token has, in the host's memory.
    lacking  (N, 1) bool  whether a token's ids are those outside of its set, on `device`; None: no token's are.
    """

    ids: Tensor
    counts: Tensor
    lacking: Tensor | None
    device: torch.device

    @classmethod
    def of(cls, batch: TrainBatch, slots: Tensor, device: torch.device) -> KeptSets | None:
        """Return the sets of the batch's tokens, whose places are `slots (N,)`; None where nothing was truncated."""
        if batch.kept_sizes is None or batch.kept_ids is None:
            return None
        sizes = batch.kept_sizes.flatten()[slots].cpu().long()
        lacking = sizes < 0
        lack = sent([lacking[:, None]], device)[0] if bool(lacking.any()) else None
        return cls(torch.cat(batch.kept_ids), torch.where(lacking, -1 - sizes, sizes), lack, device)

    def of_tokens(self, start: int, end: int) -> KeptSets:
        """Return the sets of the tokens from `start` to `end`."""
        first, here = int(self.counts[:start].sum()), self.counts[start:end]
        lacking = None if self.lacking is None else self.lacking[start:end]
        return KeptSets(self.ids[first : first + int(here.sum())], here, lacking, self.device)

    def places(self, blocks: Sequence[tuple[int, int]]) -> Sequence[Tensor]:
        """Return where the listed ids are in each block `(N, v)` of logits, flat; `blocks` are as wide as the first one
        but for the last.

        Tokens stay in their order, in which a block is read and written several times as fast as in that of the ids.
        """
        tokens, width = torch.arange(len(self.counts)).repeat_interleave(self.counts), blocks[0][1]
        if len(blocks) == 1:
            return sent([tokens * width + self.ids], self.device)
        block, order = (self.ids // width).sort(stable=True)
        first = block * width
        wide = (blocks[-1][1] - first).clamp(max=width)
        places = tokens[order] * wide + self.ids[order] - first
        sizes: list[int] = block.bincount(minlength=len(blocks)).tolist()
        return list(torch.split(sent([places], self.device)[0], sizes))

    def leave_out(self, block: Tensor, value: float, places: Tensor) -> Tensor:
        """Write `value` into `block (N, v)` where an id is not in a token's set; `places` are the block's own."""
        flat = block.view(-1)
        listed = flat.index_select(0, places)
        if self.lacking is None:
            block.fill_(value)
        else:
            block.masked_fill_(~self.lacking, value)
            listed = listed.masked_fill_(self.lacking[places // block.shape[1], 0], value)
        flat.index_copy_(0, places, listed)
        return block
