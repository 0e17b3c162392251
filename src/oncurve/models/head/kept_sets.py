"""The kept sets of truncated sampling, for the head: logits outside a token's set count as impossible.

    log q(a | K) = z_a/τ - log Σ_{k∈K} exp(z_k/τ)        K as the sampler recorded it

Logits outside K are replaced, block by block or chunk by chunk, so that neither logits nor masks `(B, T, V)` exist.
"""

from __future__ import annotations

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
    """The sets of N tokens, on the device of the logits.

    tokens, ids   (m,)         the tokens' numbers and the ids that are listed for them, by ascending id.
    order         (m,)         the ids, in the host's memory.
    lacking       (N, 1) bool  a token's ids are those that are not in its set; None: of no token
    """

    tokens: Tensor
    ids: Tensor
    order: Tensor
    lacking: Tensor | None

    @classmethod
    def of(cls, batch: TrainBatch, slots: Tensor, device: torch.device) -> KeptSets | None:
        """Return the sets of the batch's tokens, whose places are `slots (N,)`; None where nothing was truncated."""
        if batch.kept_sizes is None or batch.kept_ids is None:
            return None
        sizes = batch.kept_sizes.flatten()[slots].cpu().long()
        lacking = sizes[:, None] < 0
        order, by_id = torch.cat(batch.kept_ids).sort()
        tokens = torch.arange(len(sizes)).repeat_interleave(torch.where(sizes < 0, -1 - sizes, sizes))[by_id]
        there, ids, lack = sent([tokens, order, lacking], device)
        return cls(there, ids, order, lack if bool(lacking.any()) else None)

    def of_tokens(self, start: int, end: int) -> KeptSets:
        """Return the sets of the tokens from `start` to `end`."""
        here = (self.tokens >= start) & (self.tokens < end)
        lacking = None if self.lacking is None else self.lacking[start:end]
        return KeptSets(self.tokens[here] - start, self.ids[here], self.order[here.cpu()], lacking)

    def leave_out(self, block: Tensor, value: float, first: int = 0) -> Tensor:
        """Write `value` into `block (N, v)`, of the ids from `first` on, where an id is not in a token's set."""
        width = block.shape[1]
        low, high = torch.searchsorted(self.order, torch.tensor([first, first + width], dtype=torch.int32)).tolist()
        tokens, flat = self.tokens[low:high], block.view(-1)
        places = tokens * width + (self.ids[low:high] - first)
        listed = flat[places]
        if self.lacking is None:
            block.fill_(value)
        else:
            block.masked_fill_(~self.lacking, value)
            listed = listed.masked_fill_(self.lacking[tokens, 0], value)
        flat.index_copy_(0, places, listed)
        return block
