"""The rows that have ended, and those that the token loop on the host decodes, as tensors over the rows.

Every row that is decoded has a *slot* in two tables `(slots, T)`, tokens and log-probabilities, until it is compacted
away; so the tables are as large as what is decoded at a time, however many rows come and go.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from oncurve.base.errors import ModelError
from oncurve.models.causal import DecodeRequest, EndedRows, OnEnded, StopStrings
from oncurve.randomness import uniform_at
from oncurve.types import Ending

# Uniforms of so many positions at a time: the hash is a dozen small kernels, here one in 64 steps.
_POSITIONS_AT_ONCE = 64


class EndedGroups:
    """The rows of a request that have ended. Groups are handed over as they become complete."""

    def __init__(self, request: DecodeRequest, on_group: OnEnded | None) -> None:
        self._copies, self._on_group = request.copies, on_group
        self._missing = [request.copies] * len(request.prompts)
        self._rows: dict[int, EndedRows] = {}

    def add(self, number: int, row: EndedRows) -> None:
        """Take in a row by its number. Raises ModelError: a log-probability of it is not finite."""
        if not all(map(math.isfinite, row.logprobs)):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        self._rows[number] = row
        group = number // self._copies
        self._missing[group] -= 1
        if not self._missing[group] and self._on_group is not None:
            first = group * self._copies
            self._on_group(group, [self._rows[other] for other in range(first, first + self._copies)])

    def rows(self) -> list[EndedRows]:
        """Return all rows, in the order of the request."""
        return [self._rows[number] for number in range(len(self._rows))]


class DecodedRows:
    """Rows that are decoded together, in the decoder's order.

    capacity    at most so many
    positions   T, the most tokens a row may have
    eos_ids     any of them ends a row

    Rows have numbers, by which the caller knows them.
    """

    def __init__(self, capacity: int, positions: int, eos_ids: Sequence[int], device: torch.device) -> None:
        self.capacity, self._positions, self._device = capacity, positions, device
        self.free = capacity
        """How many rows could join once the finished ones are compacted away."""
        self._ends = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=device)
        self._free_slots = list(range(capacity))
        self._step = 0
        self._full_at: list[int] = []  # the steps at which rows that joined together have T tokens, ascending
        self._due: set[int] = set()  # the steps in which a row reaches its limit
        self._rows = torch.empty(5, 0, dtype=torch.int64, device=device)
        self._growing = torch.empty(0, dtype=torch.bool, device=device)
        self._growing_count = 0
        self._tokens = torch.empty(capacity, positions, dtype=torch.int64, device=device)
        self._logprobs = torch.empty(capacity, positions, dtype=torch.float64, device=device)
        self._kept_at: Tensor | None = None  # (2, slots, T): sizes of kept sets, and where their ids begin in a step's
        self._kept_ids: dict[int, bytes] = {}  # by step
        self._uniforms = torch.empty(0)
        self._locate()

    def __len__(self) -> int:
        return len(self._numbers)

    def join(self, first: int, keys: Tensor, limits: Tensor) -> None:
        """Append rows `first`, `first + 1`, ... with their `keys` and `limits` (k,)."""
        count, device = len(keys), self._device
        self._due |= {self._step + limit - 1 for limit in set(limits.tolist())}
        self._full_at.append(self._step + self._positions)
        slots = torch.tensor([self._free_slots.pop() for _ in range(count)])
        new = torch.stack([torch.arange(first, first + count), slots, keys, limits - 1, torch.zeros_like(slots)])
        self._rows = torch.cat([self._rows, new.to(device)], 1)
        self._growing = torch.cat([self._growing, torch.ones(count, dtype=torch.bool, device=device)])
        self._growing_count += count
        self.free -= count
        self._locate()

    def _locate(self) -> None:
        """Find where in the flattened tables each row's next token belongs."""
        self._numbers, self._slots, self._keys, self._last, self._position = self._rows
        self._at = self._slots * self._positions + self._position
        self._uniforms_used = _POSITIONS_AT_ONCE

    def uniforms(self) -> Tensor:
        """Return the uniforms `(n,)` float64 for each row's next token; a new one at every call."""
        if self._uniforms_used == _POSITIONS_AT_ONCE:
            ahead = torch.arange(_POSITIONS_AT_ONCE, device=self._device)[:, None]
            self._uniforms = uniform_at(self._keys[None, :], self._position[None, :] + ahead)
            self._uniforms_used = 0
        self._uniforms_used += 1
        return self._uniforms[self._uniforms_used - 1]

    def keep_sets(self, sizes: Tensor, ids: Tensor) -> None:
        """Take in the kept sets of the tokens that are written next: `(n,)` sizes and `(m,)` ids."""
        if self._kept_at is None:
            self._kept_at = torch.empty(2, *self._tokens.shape, dtype=torch.int64, device=self._device)
        counts = torch.where(sizes < 0, -1 - sizes, sizes)
        self._kept_at.view(2, -1).index_copy_(1, self._at, torch.stack([sizes, counts.cumsum(0) - counts]).long())
        self._kept_ids[self._step] = ids.cpu().numpy().tobytes()

    def write(self, ids: Tensor, logprobs: Tensor, stop: StopStrings | None) -> dict[int, EndedRows]:
        """Append a token to each row; those that end with it, by their numbers."""
        self._tokens.view(-1).index_copy_(0, self._at, ids)
        self._logprobs.view(-1).index_copy_(0, self._at, logprobs.double())
        ended: dict[int, EndedRows] = {}
        if len(self._ends):
            over = (ids[:, None] == self._ends).any(1).logical_and_(self._growing)
            if bool(over.any()):
                ended |= self._finish(over, "eos", {})
        if stop is not None:
            ended |= self._finish_stopped(ids, stop)
        if self._step in self._due:
            ended |= self._finish((self._position == self._last).logical_and_(self._growing), "length", {})
        self._step += 1
        self._position += 1
        self._at += 1
        return ended

    def _finish_stopped(self, ids: Tensor, stop: StopStrings) -> dict[int, EndedRows]:
        """End the rows whose newest token completed a stop string."""
        growing = self._growing.nonzero().squeeze(1).cpu()
        if not len(growing):
            return {}
        texts = {}
        for index in growing[stop.candidates(ids.cpu()[growing])].tolist():
            number = int(self._numbers[index])
            text = stop.finished(number, partial(self._written, index))
            if text is not None:
                texts[number] = text
        if not texts:
            return {}
        return self._finish(torch.isin(self._numbers, torch.tensor(list(texts), device=self._device)), "stop", texts)

    def _written(self, row: int, start: int) -> list[int]:
        return list(self._tokens[self._slots[row], start : self._position[row] + 1].tolist())

    def _finish(self, over: Tensor, ending: Ending, texts: dict[int, str]) -> dict[int, EndedRows]:
        """Return the rows of `over` (n,) bool end with the token just written."""
        rows = over.nonzero().squeeze(1)
        lengths = (self._position[rows] + 1).tolist()
        written = (self._slots[rows], slice(max(lengths, default=0)))
        found = (x.tolist() for x in (self._numbers[rows], self._tokens[written], self._logprobs[written]))
        kept = [(None, b"")] * len(lengths) if self._kept_at is None else map(self._sets_of, rows.tolist(), lengths)
        ended = {
            number: EndedRows(tuple(ids[:length]), tuple(logprobs[:length]), ending, texts.get(number), *sets)
            for number, ids, logprobs, length, sets in zip(*found, lengths, kept, strict=True)
        }
        self._growing &= ~over
        self._growing_count -= len(ended)
        self.free += len(ended)
        return ended

    def _sets_of(self, row: int, length: int) -> tuple[tuple[int, ...], bytes]:
        """Return sizes and ids of the kept sets of a row that ends with the token just written."""
        assert self._kept_at is not None  # the caller has looked
        sizes, starts = self._kept_at[:, self._slots[row], :length].tolist()
        written = zip(range(self._step + 1 - length, self._step + 1), starts, sizes, strict=True)
        pieces = [
            self._kept_ids[step][4 * start : 4 * (start + (size if size >= 0 else -1 - size))]
            for step, start, size in written
        ]
        return tuple(sizes), b"".join(pieces)

    def wasteful(self, share: float) -> bool:
        """Return whether this share of the rows is finished and still computed, or some cannot be computed any more,
        because they have T tokens.
        """
        full = bool(self._full_at) and self._full_at[0] <= self._step
        return full or 1 - self._growing_count / len(self) >= share

    def compact(self) -> Tensor:
        """Forget the finished rows: the indices `(k,)` of those that stay."""
        kept = self._growing.nonzero().squeeze(1)
        self._free_slots += self._slots[~self._growing].tolist()
        self._full_at = [step for step in self._full_at if step > self._step]
        self._rows, self._growing = self._rows[:, kept], self._growing[kept]
        self._locate()
        oldest = self._step - int(self._position.max()) if self._kept_ids and len(kept) else self._step
        self._kept_ids = {step: ids for step, ids in self._kept_ids.items() if step >= oldest}
        return kept
