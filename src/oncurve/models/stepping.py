"""Whole steps of a rollout without the host: head, sampler, the test for the end and the body in one function.

What a row needs lies in tensors that stay where they are: the key of its uniforms, its limit, its tokens, whether it
still grows. A row that has ended goes on being computed beside the others, but writes nothing and keeps its place; the
host looks at all rows once in many steps (`look`) and takes those that ended.

    begin -> admit(prompts, keys, limits) -> run(16) -> look() -> written(rows) -> leave(places) -> admit ...

A row's tokens are those of the loop that looks at every token: its uniforms are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oncurve.models.causal import Head
from oncurve.models.graphs import Room
from oncurve.models.prefill import prefill
from oncurve.models.static import Grid, StaticCache
from oncurve.randomness import uniform_at

__all__ = ["EOS", "GROWING", "LENGTH", "Draw", "GraphRows", "Look"]

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(logits (n, V), uniforms (n,)) -> (ids (n,), log-probabilities (n,))`, without looking at a number on the host."""

GROWING, EOS, LENGTH = range(3)
"""How a row stands, or what ended it."""


@dataclass(frozen=True)
class Look:
    """Every row of the grid, row `place · G + copy`: how it stands, and how many tokens it has."""

    states: list[int]
    counts: list[int]


class GraphRows:
    """Groups of `copies` rows in a `Room`. Never records a gradient.

    copies    rows of a group
    logits    the model's head
    ends      any of these ids ends a row

    What is captured reads all of these, so the object is kept from rollout to rollout; `begin` starts one.
    """

    def __init__(self, room: Room, copies: int, logits: Head, draw: Draw, ends: Sequence[int]) -> None:
        self._room, self._copies, self._logits, self._draw = room, copies, logits, draw
        self._ends = torch.tensor(sorted(set(ends)), dtype=torch.int64, device=room.device)
        self._me = object()  # whose steps they are that the room's graphs hold
        self._cache: StaticCache | None = None
        self._ages: dict[int, int] = {}

    @torch.no_grad()
    def begin(self, groups: int, prompt_tokens: int, positions: int) -> None:
        """Take the room, empty: `groups` places, prompts and completions of at most so many tokens."""
        room = self._room
        room.prepare(Grid(groups, self._copies, prompt_tokens, positions))
        self._ages = {}
        if self._cache is not room.cache:
            self._cache = room.cache
            rows, width = room.grid.rows, room.grid.new_tokens
            none = room.ids.new_zeros(rows)
            self._keys, self._last, self._states, self._counts = (none.clone() for _ in range(4))
            self._tokens = none.new_zeros(rows * width)
            self._logprobs: Tensor | None = None
            self._starts = torch.arange(rows, device=room.device) * width
        self._states.fill_(LENGTH)

    @property
    def free(self) -> list[int]:
        """Places where nobody is."""
        return [place for place in range(self._room.grid.groups) if place not in self._ages]

    @torch.no_grad()
    def admit(self, prompts: Sequence[Tensor], keys: Tensor, limits: Tensor) -> list[int]:
        """Seat groups in free places: their places. `keys`, `limits (M', G)`; limits in 1..T.

        Raises ValueError where there are not so many free places.
        """
        room, places = self._room, self.free[: len(prompts)]
        if len(places) < len(prompts):
            raise ValueError(f"{len(prompts)} groups for {len(places)} free places")
        first_hidden, prefixes = prefill(room.run, prompts, room.device)
        for prompt, place in enumerate(places):
            rows = room.cache.rows_of(place)
            room.seat(place, prefixes, prompt, first_hidden[prompt])
            self._keys[rows], self._last[rows] = keys[prompt].to(room.device), limits[prompt].to(room.device) - 1
            self._states[rows], self._counts[rows] = GROWING, 0
            self._ages[place] = 0
        return places

    @torch.no_grad()
    def run(self, steps: int) -> None:
        """So many tokens for every row that grows; nothing where nobody is."""
        room = self._room
        if self._logprobs is None and self._ages:
            _, logprobs = self._draw(self._logits(room.hidden[:1]), uniform_at(self._keys[:1], 0))
            self._logprobs = logprobs.new_zeros(len(self._tokens))
        changed = [room.cache.steps, room.ids, room.hidden, self._states, self._counts]
        for _ in range(steps if self._ages else 0):
            key = room.sizes(self._ages)
            room.graphs.run((self._me, *key), partial(self._step, *key), changed)
            # A row of T tokens has ended: the room is as wide as it gets.
            self._ages = {place: min(age + 1, room.grid.new_tokens - 1) for place, age in self._ages.items()}

    def _step(self, places: int, width: int) -> None:
        room = self._room
        rows = slice(places * room.grid.copies)
        steps, states, last = room.cache.steps[rows], self._states[rows], self._last[rows]
        growing = states == GROWING
        ids, logprobs = self._draw(self._logits(room.hidden[rows]), uniform_at(self._keys[rows], steps))
        assert self._logprobs is not None  # `run` has looked
        at = self._starts[rows] + steps
        for table, new in ((self._tokens, ids), (self._logprobs, logprobs)):
            table.index_copy_(0, at, torch.where(growing, new, table.index_select(0, at)))
        over = torch.where(steps >= last, LENGTH, GROWING)
        over = torch.where((ids[:, None] == self._ends).any(1), EOS, over)
        states.copy_(torch.where(growing, over, states))
        self._counts[rows].add_(growing)
        room.ids[rows].copy_(ids)
        room.body(places, width)
        steps.add_(states == GROWING)

    def look(self) -> Look:
        """How all rows stand. Waits for the device."""
        states, counts = torch.stack([self._states, self._counts]).tolist()
        return Look(states, counts)

    def written(self, rows: Sequence[int], longest: int) -> tuple[list[list[int]], list[list[float]]]:
        """The first `longest` tokens of some rows, and their log-probabilities; beyond a row's count is anything."""
        assert self._logprobs is not None  # rows have run
        chosen = torch.tensor(list(rows), dtype=torch.int64, device=self._room.device)
        tokens, logprobs = (
            table.view(self._room.grid.rows, -1)[chosen, :longest].tolist() for table in (self._tokens, self._logprobs)
        )
        return tokens, logprobs

    def end(self, rows: Sequence[int]) -> None:
        """These rows have ended for a reason that only the host knows, such as a stop string."""
        self._states[torch.tensor(list(rows), dtype=torch.int64, device=self._room.device)] = LENGTH

    def leave(self, places: Sequence[int]) -> None:
        """These places are free, whatever their rows have written."""
        for place in places:
            del self._ages[place]
            self._states[self._room.cache.rows_of(place)] = LENGTH
