"""The token loop on the host: groups come in as rows become free, and no Python runs per row and step.

    admit groups into free rows -> draw a token per row -> see which rows ended -> drop these -> step -> ...

Groups wait in a queue and are admitted whole, in its order. Finished rows go on being computed until enough of them
have gathered, then the batch is compacted; what they draw in the meantime is never read. No number that is drawn
depends on any of this: a row's uniforms are its own (`randomness.row_keys`).

rows.py         what is known of the rows that are decoded
graph_loop.py   the loop on CUDA, which reads the state of the rows once in many steps
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.models.causal import Decoder, DecodeRequest, EndedRows, OnEnded
from oncurve.models.decode.rows import DecodedRows, EndedGroups

# Logits of so many numbers at a time (64 MiB in float32), so that a large vocabulary with many rows fits in memory. Not
# fewer, because each slice reads the whole head.
_LOGITS_AT_ONCE = 1 << 24

# Compact when this share of the rows is finished: each costs its share of a step, but compaction copies the cache.
_COMPACT_SHARE = 0.125

# Admit groups when this share of all rows is free: those admitted together share their steps of attention.
_ADMIT_SHARE = 0.25


@dataclass(frozen=True)
class HostLoop:
    """A `TokenLoop` over a `Decoder`.

    decoder   (about how many rows, max_new_tokens) -> a decoder without rows
    device    where the model is
    """

    decoder: Callable[[int, int], Decoder]
    device: torch.device

    # Not under inference mode as a whole: a module may keep what it makes here (rotary tables, masks), and a tensor
    # made under inference mode can never take part in a gradient.
    @torch.no_grad()
    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request, in their order."""
        return _HostDecoding(self, request, on_group).run()


class _HostDecoding:
    """One call of the loop."""

    def __init__(self, loop: HostLoop, request: DecodeRequest, on_group: OnEnded | None) -> None:
        self._make, self._request, self._copies = loop.decoder, request, request.copies
        count = request.keys.numel()
        capacity = max(self._copies, min(count, request.max_concurrent or count))
        self._rows = DecodedRows(capacity, request.max_new_tokens, request.eos_ids, loop.device)
        self._ended = EndedGroups(request, on_group)
        self._waiting = 0  # the first group that is not admitted yet
        self._decoder: Decoder | None = None
        self._at_once = 1

    def run(self) -> list[EndedRows]:
        """Decode all groups."""
        hidden = self._admit(self._admissible(), None)
        while len(self._rows):
            ids, logprobs, *kept = self._draw(hidden)
            if kept:
                self._rows.keep_sets(*kept)
            for number, row in sorted(self._rows.write(ids, logprobs, self._request.stop).items()):
                self._ended.add(number, row)
            admissible = self._admissible()
            if admissible or self._rows.wasteful(_COMPACT_SHARE):
                ids = self._compact(ids)
            stepped = self._decoder.step(ids) if self._decoder is not None and len(ids) else None
            hidden = self._admit(admissible, stepped)
        return self._ended.rows()

    def _admissible(self) -> int:
        """Return how many of the groups that wait are admitted now."""
        remaining = len(self._request.prompts) - self._waiting
        fit = min(remaining, self._rows.free // self._copies)
        enough = fit == remaining or self._rows.free >= _ADMIT_SHARE * self._rows.capacity
        return fit if enough else 0

    def _admit(self, count: int, hidden: Tensor | None) -> Tensor:
        """Return hidden states of all rows: `hidden` of those that are there, then those of `count` new groups."""
        if count:
            request, groups = self._request, slice(self._waiting, self._waiting + count)
            self._waiting += count
            if self._decoder is None:
                self._decoder = self._make(count * self._copies, request.max_new_tokens)
            first = self._decoder.join(request.prompts[groups], self._copies).repeat_interleave(self._copies, 0)
            hidden = first if hidden is None else torch.cat([hidden, first])
            keys, limits = request.keys[groups].flatten(), request.limits[groups].flatten()
            self._rows.join(groups.start * self._copies, keys, limits)
        return hidden if hidden is not None else torch.empty(0)

    def _compact(self, ids: Tensor) -> Tensor:
        """Drop the finished rows: the `ids` of those that stay."""
        kept = self._rows.compact()
        if not len(kept):
            self._decoder = None  # and its cache with it, before more is prefilled
        elif self._decoder is not None:
            self._decoder.keep(kept)
        return ids[kept]

    def _draw(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return what `Draw` gives of the next tokens, from hidden states `(n, H)`: head and sampler."""
        assert self._decoder is not None  # there are rows
        uniforms = self._rows.uniforms()
        pieces = []
        start = 0
        while start < len(hidden):
            logits = self._decoder.logits(hidden[start : start + self._at_once])
            pieces.append(self._request.draw(logits, uniforms[start : start + self._at_once]))
            start += len(logits)
            self._at_once = max(1, _LOGITS_AT_ONCE // logits.shape[1])
        return pieces[0] if len(pieces) == 1 else tuple(map(torch.cat, zip(*pieces, strict=True)))
