"""The token loop: groups come in as rows become free, each row goes as far as it goes, no Python per row and step.

    admit groups into free rows -> draw a token a row -> see which rows ended -> drop these -> step -> ...

Groups wait in a queue and are admitted whole, in its order. Finished rows go on being computed until enough of them
have gathered, then the batch is compacted; what they draw in the meantime is never read. No number that is drawn
depends on any of this: a row's uniforms are its own (`randomness.row_keys`).

rows.py      what is known of the rows that are decoded
graphed.py   the loop on CUDA, which looks at the rows once in many steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.models.causal import CausalModel, Decoder, module_device
from oncurve.models.decoding import CachedDecoder
from oncurve.models.network import TransformersModel
from oncurve.rollout.graphed import decode_graphed, engine_in
from oncurve.rollout.rows import Ended, Rows
from oncurve.rollout.sampler import sample
from oncurve.rollout.stopping import StopSearch

__all__ = ["Ended", "decode_rows"]

# Logits of so many numbers at a time (64 MiB in float32), so that a large vocabulary with many rows fits in memory. Not
# fewer, for each slice reads the whole head.
_LOGITS_AT_ONCE = 1 << 24

# Compact when this share of the rows is finished: each costs its share of a step, but compaction copies the cache.
_COMPACT_SHARE = 0.125

# Admit groups when this share of all rows is free: those admitted together share their steps of attention.
_ADMIT_SHARE = 0.25


@torch.no_grad()
def decode_rows(
    model: CausalModel,
    prompts: Sequence[Tensor],
    keys: Tensor,
    eos_ids: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    search: StopSearch | None = None,
    limits: Tensor | None = None,
    on_group: Callable[[int, list[Ended]], None] | None = None,
    rows: int | None = None,
) -> list[Ended]:
    """Completions of `prompts`, `n / M` of each, in the order of `keys`.

    prompts      M tensors (P_g,) int64
    keys         (n,) int64, one a row: see `randomness.row_keys`; n is a multiple of M
    eos_ids      any of them ends a row; none: only the limits do
    search       looks for stop strings in the rows; None: there are none
    limits       (n,) int64 in 1..max_new_tokens, the most tokens of each row; None: `max_new_tokens` for all
    on_group     called with a prompt's index and its completions as soon as the last of them has ended
    rows         at most so many are decoded side by side (but never less than a group); None: all

    A row's ids include the token that ended it. Not under inference mode as a whole: a module may keep what it makes
    here (rotary tables, masks), and a tensor made under inference mode can never take part in a gradient.
    """
    copies = len(keys) // len(prompts)
    room = model.decoding_room() if isinstance(model, TransformersModel) else None
    if room is not None:
        engine = engine_in(room, model.raw_logits, copies, temperature, eos_ids)
        return decode_graphed(engine, prompts, keys, max_new_tokens, search, limits, on_group, rows)
    if limits is None:
        limits = torch.full_like(keys, max_new_tokens)
    asked = _Asked(model, prompts, keys.view(-1, copies), limits.view(-1, copies), max_new_tokens, temperature)
    capacity = max(copies, min(len(keys), rows or len(keys)))
    slots = Rows(capacity, max_new_tokens, eos_ids, module_device(model.module))
    return _Loop(asked, slots, search, on_group).run()


@dataclass(frozen=True)
class _Asked:
    """What is to be decoded; `keys` and `limits` are `(M, G)`."""

    model: CausalModel
    prompts: Sequence[Tensor]
    keys: Tensor
    limits: Tensor
    max_new_tokens: int
    temperature: float


class _Loop:
    """One call of `decode_rows`."""

    def __init__(
        self,
        asked: _Asked,
        rows: Rows,
        search: StopSearch | None,
        on_group: Callable[[int, list[Ended]], None] | None,
    ) -> None:
        self._asked, self._rows, self._search, self._on_group = asked, rows, search, on_group
        self._waiting = 0  # the first group that is not admitted yet
        self._decoder: Decoder | None = None
        self._at_once = 1
        self._copies = asked.keys.shape[1]
        self._ended: dict[int, Ended] = {}
        self._missing = [self._copies] * len(asked.prompts)

    def run(self) -> list[Ended]:
        """Decode all groups."""
        hidden = self._admit(self._admissible(), None)
        while len(self._rows):
            ids, logprobs = self._draw(hidden)
            self._note(self._rows.write(ids, logprobs, self._search))
            admissible = self._admissible()
            if admissible or self._rows.finished_share() >= _COMPACT_SHARE or self._rows.full():
                ids = self._compact(ids)
            behind = self._decoder.step(ids) if self._decoder is not None and len(ids) else None
            hidden = self._admit(admissible, behind)
        return [self._ended[row] for row in range(self._asked.keys.numel())]

    def _admissible(self) -> int:
        """How many of the groups that wait are admitted now."""
        remaining = len(self._asked.prompts) - self._waiting
        fit = min(remaining, self._rows.free // self._copies)
        enough = fit == remaining or self._rows.free >= _ADMIT_SHARE * self._rows.capacity
        return fit if enough else 0

    def _admit(self, count: int, hidden: Tensor | None) -> Tensor:
        """Hidden states of all rows: `hidden` of those that are under way, then those of `count` new groups."""
        if count:
            asked, groups = self._asked, slice(self._waiting, self._waiting + count)
            self._waiting += count
            prompts, copies = asked.prompts[groups], [self._copies] * count
            if self._decoder is None:
                self._decoder = asked.model.decoder(prompts, copies, asked.max_new_tokens)
                first = self._decoder.first_hidden
            else:
                first = self._decoder.join(prompts, copies)
            first = first.repeat_interleave(self._copies, 0)
            hidden = first if hidden is None else torch.cat([hidden, first])
            self._rows.join(groups.start * self._copies, asked.keys[groups].flatten(), asked.limits[groups].flatten())
        return hidden if hidden is not None else torch.empty(0)

    def _compact(self, ids: Tensor) -> Tensor:
        """Drop the finished rows: the `ids` of those that stay."""
        kept = self._rows.compact()
        if not len(kept):
            self._decoder = None  # and its cache with it, before more is prefilled
        elif self._decoder is not None:
            self._decoder.keep(kept)
        return ids[kept]

    def _note(self, ended: dict[int, Ended]) -> None:
        """Take in rows that ended, by their numbers; hand over the groups that are whole by that."""
        self._ended |= ended
        for row in sorted(ended):
            group = row // self._copies
            self._missing[group] -= 1
            if not self._missing[group] and self._on_group is not None:
                first = group * self._copies
                self._on_group(group, [self._ended[row] for row in range(first, first + self._copies)])

    def _draw(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities `(n,)` of the next tokens, from hidden states `(n, H)`: head and sampler."""
        model, temperature, uniforms = self._asked.model, self._asked.temperature, self._rows.uniforms()
        prepared = self._decoder.logits if isinstance(self._decoder, CachedDecoder) else None
        make = prepared or model.raw_logits
        pieces = []
        start = 0
        while start < len(hidden):
            logits = make(hidden[start : start + self._at_once])
            pieces.append(sample(logits, uniforms[start : start + self._at_once], temperature))
            start += len(logits)
            self._at_once = max(1, _LOGITS_AT_ONCE // logits.shape[1])
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat([ids for ids, _ in pieces]), torch.cat([logprobs for _, logprobs in pieces])
