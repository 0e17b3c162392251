"""The kept sets of truncated sampling, for the head: logits outside a token's set count as impossible.

    log q(a | K) = z_a/τ - log Σ_{k∈K} exp(z_k/τ)        K as the sampler recorded it

Logits outside K are replaced by `FAR`, block by block or chunk by chunk, so that neither logits nor masks `(B, T, V)`
exist. A finite number: its softmax is exactly 0, and 0 times it is 0, in values and gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.types import TrainBatch, sent

FAR = -1e30
"""A logit that no probability is left of, at any temperature; finite in bfloat16, too."""


@dataclass(frozen=True)
class KeptSets:
    """The sets of N tokens, on the device of the logits.

    tokens, ids   (m,) int64   the tokens' numbers and the ids that are listed for them, by ascending id
    lacking       (N, 1) bool  a token's ids are those that are not in its set
    order         (m,) int64   the ids, in the host's memory
    """

    tokens: Tensor
    ids: Tensor
    lacking: Tensor
    order: Tensor

    @classmethod
    def of(cls, batch: TrainBatch, slots: Tensor, device: torch.device) -> KeptSets | None:
        """Return the sets of the batch's tokens, whose places are `slots (N,)`; None where nothing was truncated."""
        if batch.kept_sizes is None or batch.kept_ids is None:
            return None
        sizes = batch.kept_sizes.flatten()[slots].cpu().long()
        counts = torch.where(sizes < 0, -1 - sizes, sizes)
        order, by_id = torch.cat(batch.kept_ids).long().sort()
        tokens = torch.arange(len(sizes)).repeat_interleave(counts)[by_id]
        there, ids, lacking = sent([tokens, order, sizes[:, None] < 0], device)
        return cls(there, ids, lacking, order)

    def of_tokens(self, start: int, end: int) -> KeptSets:
        """Return the sets of the tokens from `start` to `end`."""
        here = (self.tokens >= start) & (self.tokens < end)
        return KeptSets(self.tokens[here] - start, self.ids[here], self.lacking[start:end], self.order[here.cpu()])

    def outside(self, first: int, last: int) -> Tensor:
        """Return `(N, last - first)` bool: which of the ids `first ... last - 1` are not in a token's set."""
        low, high = torch.searchsorted(self.order, torch.tensor([first, last])).tolist()
        tokens, width = self.tokens[low:high], last - first
        outside = (~self.lacking).expand(-1, width).contiguous()
        outside.view(-1).index_copy_(0, tokens * width + (self.ids[low:high] - first), self.lacking[tokens, 0])
        return outside
