"""The token loop: the rows of one pass through a decoder, with no Python per row.

What a row needs lies in tensors over the rows: the key of its uniforms, its tokens `(T, n)`, whether it still grows.
Finished rows go on being computed until enough of them have gathered, then the batch is compacted; what they draw in
the meantime lies beyond their length and is never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.errors import ModelError
from oncurve.models.causal import CausalModel
from oncurve.randomness import uniform_at
from oncurve.rollout.sampler import sample
from oncurve.rollout.stopping import StopSearch
from oncurve.types import Ending

__all__ = ["Ended", "decode_rows"]

# Logits of so many numbers at a time (64 MiB in float32): a large vocabulary is sampled in slices of the rows.
_LOGITS_AT_ONCE = 1 << 24

# Uniforms of so many positions at a time: the hash is a dozen small kernels, here one in 64 steps.
_POSITIONS_AT_ONCE = 64

# Compact when this share of the rows is finished: each costs its share of a step, but compaction copies the cache.
_COMPACT_SHARE = 0.125

_ENDINGS: tuple[Ending, ...] = ("length", "eos", "stop")
_LENGTH, _EOS, _STOP = range(3)


@dataclass(frozen=True)
class Ended:
    """A completion as the token loop leaves it; `text` is there where a stop string cut it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: Ending
    text: str | None


class _Rows:
    """The n rows of a pass: what they drew, how they ended, and which of them the decoder still holds (`live`)."""

    def __init__(self, keys: Tensor, positions: int, dtype: torch.dtype, copies: int) -> None:
        n, device = len(keys), keys.device
        self._copies = copies
        self._growing_of_group = [copies] * (n // copies)
        self.tokens = torch.zeros(positions, n, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(positions, n, dtype=dtype, device=device)
        self.lengths = torch.full((n,), positions, device=device)
        self.endings = torch.zeros(n, dtype=torch.int64, device=device)
        self.live = torch.arange(n, device=device)
        self.growing = torch.ones(n, dtype=torch.bool, device=device)  # of the live rows
        self.growing_count = n
        self._keys = keys
        self._uniforms = torch.empty(0)

    def uniforms(self, position: int) -> Tensor:
        """The uniforms `(live,)` float64 for token `position`; positions come in order, from 0."""
        offset = position % _POSITIONS_AT_ONCE
        if offset == 0:
            positions = torch.arange(position, position + _POSITIONS_AT_ONCE, device=self._keys.device)
            self._uniforms = uniform_at(self._keys[None, :], positions[:, None])
        return self._uniforms[offset]

    def write(self, position: int, ids: Tensor, logprobs: Tensor) -> None:
        """Token `position` of the live rows."""
        self.tokens[position].index_copy_(0, self.live, ids)
        self.logprobs[position].index_copy_(0, self.live, logprobs)

    def finish(self, over: Tensor, position: int, ending: int) -> list[int]:
        """The live rows of `over` (live,) bool end with token `position`; returns the groups that are whole by that."""
        rows = self.live[over]
        self.lengths[rows] = position + 1
        self.endings[rows] = ending
        self.growing &= ~over
        self.growing_count -= len(rows)
        whole = []
        for group in (rows // self._copies).tolist():
            self._growing_of_group[group] -= 1
            if not self._growing_of_group[group]:
                whole.append(group)
        return whole

    def compact(self) -> Tensor | None:
        """Forget the finished rows if they are worth it: the indices into the live rows that stay, or None."""
        if len(self.live) - self.growing_count < _COMPACT_SHARE * len(self.live):
            return None
        kept = self.growing.nonzero().squeeze(1)
        self.live, self.growing, self._keys = self.live[kept], self.growing[kept], self._keys[kept]
        self._uniforms = self._uniforms[:, kept]
        return kept

    def ended(self, group: int, texts: dict[int, str]) -> list[Ended]:
        """The rows of a whole group, cut to their lengths. ModelError where a log-probability is not finite."""
        rows = slice(group * self._copies, (group + 1) * self._copies)
        lengths = self.lengths[rows].tolist()
        columns = zip(
            range(rows.start, rows.stop),
            self.tokens[: max(lengths), rows].T.tolist(),
            self.logprobs[: max(lengths), rows].T.tolist(),
            lengths,
            self.endings[rows].tolist(),
            strict=True,
        )
        ended = [
            Ended(tuple(ids[:length]), tuple(logprobs[:length]), _ENDINGS[ending], texts.get(row))
            for row, ids, logprobs, length, ending in columns
        ]
        if not all(math.isfinite(logprob) for row in ended for logprob in row.logprobs):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        return ended


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
) -> list[Ended]:
    """Completions of `prompts`, `n / M` of each, in the order of `keys`.

    prompts      M tensors (P_g,) int64
    keys         (n,) int64, one a row: see `randomness.row_keys`; n is a multiple of M
    eos_ids      any of them ends a row; none: only the limits do
    search       looks for stop strings in the rows; None: there are none
    limits       (n,) int64 in 1..max_new_tokens, the most tokens of each row; None: `max_new_tokens` for all
    on_group     called with a prompt's index and its completions as soon as the last of them has ended

    A row's ids include the token that ended it. Not under inference mode: a module may keep what it makes here (rotary
    tables, masks), and a tensor made under inference mode can never take part in a gradient.
    """
    copies = len(keys) // len(prompts)
    decoder = model.decoder(prompts, [copies] * len(prompts), max_new_tokens)
    hidden = decoder.first_hidden[decoder.groups]
    probe = model.logits(hidden[:1])
    at_once = max(1, _LOGITS_AT_ONCE // probe.shape[1])
    rows = _Rows(keys.to(hidden.device), max_new_tokens, probe.dtype, copies)
    ends = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=hidden.device)
    last = (limits if limits is not None else torch.full_like(keys, max_new_tokens)).to(hidden.device) - 1
    lasts = set(last.tolist())
    texts: dict[int, str] = {}
    results: dict[int, list[Ended]] = {}
    for position in range(max_new_tokens):
        ids, logprobs = _draw(model, hidden, rows.uniforms(position), temperature, at_once)
        rows.write(position, ids, logprobs)
        whole = []
        over = (ids[:, None] == ends).any(dim=1) & rows.growing
        if bool(over.any()):
            whole += rows.finish(over, position, _EOS)
        if search is not None:
            whole += _finish_stopped(rows, ids, position, search, texts)
        if position in lasts:
            whole += rows.finish((last[rows.live] == position) & rows.growing, position, _LENGTH)
        for group in sorted(whole):
            results[group] = rows.ended(group, texts)
            if on_group is not None:
                on_group(group, results[group])
        if rows.growing_count == 0:
            break
        kept = rows.compact()
        if kept is not None:
            decoder.keep(kept)
            ids = ids[kept]
        hidden = decoder.step(ids)
    return [row for group in range(len(prompts)) for row in results[group]]


def _finish_stopped(rows: _Rows, ids: Tensor, position: int, search: StopSearch, texts: dict[int, str]) -> list[int]:
    """End the rows whose token `position` completed a stop string, note their texts; the groups whole by that."""
    growing = rows.growing
    found = search.finished(rows.live[growing].cpu(), ids[growing].cpu(), rows.tokens[: position + 1])
    if not found:
        return []
    texts |= found
    return rows.finish(torch.isin(rows.live, torch.tensor(list(found), device=ids.device)), position, _STOP)


def _draw(
    model: CausalModel, hidden: Tensor, uniforms: Tensor, temperature: float, at_once: int
) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities `(n,)` of the next tokens, from hidden states `(n, H)`: head and sampler by slices."""
    if len(hidden) <= at_once:
        return sample(model.logits(hidden), uniforms, temperature)
    slices = zip(torch.split(hidden, at_once), torch.split(uniforms, at_once), strict=True)
    drawn = [sample(model.logits(states), u, temperature) for states, u in slices]
    return torch.cat([ids for ids, _ in drawn]), torch.cat([logprobs for _, logprobs in drawn])
