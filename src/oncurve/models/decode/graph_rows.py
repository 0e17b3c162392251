"""Whole steps of a rollout without the host: head, sampler, the test for the end and the body in one function.

What a row needs lies in tensors that stay where they are: the key of its uniforms, its limit, its tokens, whether it
still grows. A row that has ended is still computed with the others, but writes nothing; the host reads the state of all
rows once in many steps (`poll`) and takes those that ended.

    begin -> admit(prompts, keys, limits) -> run(16) -> poll() -> written(rows) -> release(slots) -> admit ...

A row's tokens are those of the loop on the host: its uniforms are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oncurve.models.causal import Draw, Head
from oncurve.models.decode.cuda_graphs import GraphBuffers
from oncurve.models.decode.prefill import prefill
from oncurve.models.decode.static_cache import CacheShape, StaticCache
from oncurve.randomness import uniform_at

GROWING, EOS, LENGTH = range(3)
"""The state of a row: it grows, or what ended it."""


@dataclass(frozen=True)
class RowStatus:
    """The state of every row `slot · G + copy`, and its number of tokens."""

    states: list[int]
    counts: list[int]


class GraphRows:
    """Groups of `copies` rows in `buffers`. Never records a gradient.

    copies    rows of a group
    logits    the model's head
    ends      any of these ids ends a row

    What is captured reads all of these, so the object is kept from rollout to rollout; `begin` starts one.
    """

    def __init__(self, buffers: GraphBuffers, copies: int, logits: Head, draw: Draw, ends: Sequence[int]) -> None:
        self._buffers, self._copies, self._logits, self._draw = buffers, copies, logits, draw
        self._ends = torch.tensor(sorted(set(ends)), dtype=torch.int64, device=buffers.device)
        self._graph_key = object()  # of this object's steps among the graphs of the buffers
        self._cache: StaticCache | None = None
        self._ages: dict[int, int] = {}

    @torch.no_grad()
    def begin(self, groups: int, prompt_tokens: int, positions: int) -> None:
        """Start a rollout in empty buffers: `groups` slots, prompts and completions of at most so many tokens."""
        buffers = self._buffers
        buffers.prepare(CacheShape(groups, self._copies, prompt_tokens, positions))
        self._ages = {}
        if self._cache is not buffers.cache:
            self._cache = buffers.cache
            rows, width = buffers.shape.rows, buffers.shape.new_tokens
            none = buffers.ids.new_zeros(rows)
            self._keys, self._last, self._states, self._counts = (none.clone() for _ in range(4))
            self._tokens = none.new_zeros(rows * width)
            self._logprobs: Tensor | None = None
            self._starts = torch.arange(rows, device=buffers.device) * width
        self._states.fill_(LENGTH)

    @property
    def free(self) -> list[int]:
        """Empty slots."""
        return [slot for slot in range(self._buffers.shape.groups) if slot not in self._ages]

    @torch.no_grad()
    def admit(self, prompts: Sequence[Tensor], keys: Tensor, limits: Tensor) -> list[int]:
        """Put groups into free slots: their slots. `keys`, `limits (M', G)`; limits in 1..T.

        Raises ValueError where there are not so many free slots.
        """
        buffers, slots = self._buffers, self.free[: len(prompts)]
        if len(slots) < len(prompts):
            raise ValueError(f"{len(prompts)} groups for {len(slots)} free slots")
        first_hidden, prefixes = prefill(buffers.run, prompts, buffers.device)
        for prompt, slot in enumerate(slots):
            rows = buffers.cache.rows_of(slot)
            buffers.insert(slot, prefixes, prompt, first_hidden[prompt])
            self._keys[rows], self._last[rows] = keys[prompt].to(buffers.device), limits[prompt].to(buffers.device) - 1
            self._states[rows], self._counts[rows] = GROWING, 0
            self._ages[slot] = 0
        return slots

    @torch.no_grad()
    def run(self, steps: int) -> None:
        """So many tokens for every row that grows; nothing where all slots are empty."""
        buffers = self._buffers
        if self._logprobs is None and self._ages:
            _, logprobs = self._draw(self._logits(buffers.hidden[:1]), uniform_at(self._keys[:1], 0))
            self._logprobs = logprobs.new_zeros(len(self._tokens))
        changed = [buffers.cache.steps, buffers.ids, buffers.hidden, self._states, self._counts]
        for _ in range(steps if self._ages else 0):
            key = buffers.sizes(self._ages)
            buffers.graphs.run((self._graph_key, *key), partial(self._step, *key), changed)
            # A row of T tokens has ended: the graph is as wide as it gets.
            self._ages = {slot: min(age + 1, buffers.shape.new_tokens - 1) for slot, age in self._ages.items()}

    def _step(self, slots: int, width: int) -> None:
        buffers = self._buffers
        rows = slice(slots * buffers.shape.copies)
        steps, states, last = buffers.cache.steps[rows], self._states[rows], self._last[rows]
        growing = states == GROWING
        ids, logprobs = self._draw(self._logits(buffers.hidden[rows]), uniform_at(self._keys[rows], steps))
        assert self._logprobs is not None  # `run` has made it
        at = self._starts[rows] + steps
        for table, new in ((self._tokens, ids), (self._logprobs, logprobs)):
            table.index_copy_(0, at, torch.where(growing, new, table.index_select(0, at)))
        over = torch.where(steps >= last, LENGTH, GROWING)
        over = torch.where((ids[:, None] == self._ends).any(1), EOS, over)
        states.copy_(torch.where(growing, over, states))
        self._counts[rows].add_(growing)
        buffers.ids[rows].copy_(ids)
        buffers.body(slots, width)
        steps.add_(states == GROWING)

    def poll(self) -> RowStatus:
        """Return the state of all rows. Waits for the device."""
        states, counts = torch.stack([self._states, self._counts]).tolist()
        return RowStatus(states, counts)

    def written(self, rows: Sequence[int], longest: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return the first `longest` tokens of some rows, and their log-probabilities; beyond a row's count is
        anything.
        """
        assert self._logprobs is not None  # rows have run
        chosen = torch.tensor(list(rows), dtype=torch.int64, device=self._buffers.device)
        tokens, logprobs = (
            table.view(self._buffers.shape.rows, -1)[chosen, :longest].tolist()
            for table in (self._tokens, self._logprobs)
        )
        return tokens, logprobs

    def end(self, rows: Sequence[int]) -> None:
        """These rows have ended for a reason that only the host knows, such as a stop string."""
        self._states[torch.tensor(list(rows), dtype=torch.int64, device=self._buffers.device)] = LENGTH

    def release(self, slots: Sequence[int]) -> None:
        """Free these slots, whatever their rows have written."""
        for slot in slots:
            del self._ages[slot]
            self._states[self._buffers.cache.rows_of(slot)] = LENGTH
