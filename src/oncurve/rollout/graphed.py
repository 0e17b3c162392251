"""The token loop for a device that should not wait: many steps at a time, and a look at the rows between.

    admit groups into free places -> run 16 steps -> look -> take the rows that ended -> free the places of whole groups

The same completions as `decoding.decode_rows`, row by row; what a row draws beyond its end is never written. A place
holds a group and is free again when the last of its rows has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from oncurve.errors import ModelError
from oncurve.models.causal import Head
from oncurve.models.graphs import Room
from oncurve.models.stepping import EOS, GROWING, GraphRows
from oncurve.rollout.rows import Ended
from oncurve.rollout.sampler import sample
from oncurve.rollout.stopping import StopSearch
from oncurve.types import Ending

__all__ = ["STEPS_AT_ONCE", "decode_graphed", "engine_in"]

STEPS_AT_ONCE = 16
"""Steps between two looks: a row that has ended is computed for nothing until the next."""


def engine_in(room: Room, logits: Head, copies: int, temperature: float, eos_ids: Sequence[int]) -> GraphRows:
    """Rows of groups of `copies` in a room: those of the last rollout, with their graphs, if nothing is otherwise."""
    settings = (copies, temperature, tuple(sorted(set(eos_ids))))
    if room.tenant is None or room.tenant[0] != settings:
        room.tenant = settings, GraphRows(room, copies, logits, partial(sample, temperature=temperature), eos_ids)
    engine: GraphRows = room.tenant[1]
    return engine


def decode_graphed(
    engine: GraphRows,
    prompts: Sequence[Tensor],
    keys: Tensor,
    max_new_tokens: int,
    search: StopSearch | None = None,
    limits: Tensor | None = None,
    on_group: Callable[[int, list[Ended]], None] | None = None,
    rows: int | None = None,
) -> list[Ended]:
    """Completions of `prompts`, in the order of `keys (n,)`: see `decoding.decode_rows`, whose arguments these are.

    `engine` has rows for n / M copies, and knows the model, how tokens are drawn and which ids end a row.
    """
    copies = len(keys) // len(prompts)
    limits = torch.full_like(keys, max_new_tokens) if limits is None else limits.clamp(1, max_new_tokens)
    places = max(1, min(len(prompts), (rows or len(keys)) // copies))
    engine.begin(places, max(prompt.shape[0] for prompt in prompts), max_new_tokens)
    loop = _Loop(engine, copies, search, on_group)
    waiting = 0
    while waiting < len(prompts) or loop.places:
        count = min(len(engine.free), len(prompts) - waiting)
        if count:
            groups = slice(waiting, waiting + count)
            seats = engine.admit(prompts[groups], keys.view(-1, copies)[groups], limits.view(-1, copies)[groups])
            loop.places |= {seat: waiting + index for index, seat in enumerate(seats)}
            waiting += count
        engine.run(STEPS_AT_ONCE)
        loop.look()
    return [loop.ended[number] for number in range(len(keys))]


class _Loop:
    """Who sits where, and who has ended."""

    def __init__(
        self,
        engine: GraphRows,
        copies: int,
        search: StopSearch | None,
        on_group: Callable[[int, list[Ended]], None] | None,
    ) -> None:
        self._engine, self._copies, self._search, self._on_group = engine, copies, search, on_group
        self.places: dict[int, int] = {}
        self.ended: dict[int, Ended] = {}
        self._seen: dict[int, int] = {}  # tokens of a row that the stop search has looked at

    def look(self) -> None:
        """Take the rows that ended, and free the places of groups that are whole."""
        look, copies = self._engine.look(), self._copies
        numbers = {
            place * copies + copy: group * copies + copy
            for place, group in self.places.items()
            for copy in range(copies)
        }
        there = {row: number for row, number in numbers.items() if number not in self.ended}
        over = {row for row in there if look.states[row] != GROWING}
        asked = list(there) if self._search is not None else sorted(over)
        if not asked:
            return
        written = self._engine.written(asked, max(look.counts[row] for row in asked))
        stopped = []
        for row, tokens, logprobs in zip(asked, *written, strict=True):
            count, by_eos = look.counts[row], look.states[row] == EOS
            cut = self._stopped(there[row], tokens[:count], by_eos)
            if cut is not None:
                self._take(there[row], tokens, logprobs, cut[0], "stop", cut[1])
                stopped.append(row)
            elif row in over:
                self._take(there[row], tokens, logprobs, count, "eos" if by_eos else "length", None)
        if stopped:
            self._engine.end(stopped)
        self._hand_over()

    def _stopped(self, number: int, tokens: list[int], by_eos: bool) -> tuple[int, str] | None:
        """How many tokens, and the text, of a row that a stop string ended; each new token is looked at once."""
        if self._search is None:
            return None
        seen = self._seen.get(number, 0)
        self._seen[number] = len(tokens)
        for count in range(seen + 1, len(tokens) + (0 if by_eos else 1)):

            def written(_: int, start: int, count: int = count) -> list[int]:
                return tokens[start:count]

            found = self._search.finished(torch.tensor([number]), torch.tensor(tokens[count - 1 : count]), written)
            if found:
                return count, found[number]
        return None

    def _take(
        self, number: int, tokens: list[int], logprobs: list[float], count: int, ended: Ending, text: str | None
    ) -> None:
        if not all(map(math.isfinite, logprobs[:count])):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        self.ended[number] = Ended(tuple(tokens[:count]), tuple(logprobs[:count]), ended, text)

    def _hand_over(self) -> None:
        """Groups whose rows have all ended."""
        copies = self._copies
        for place, group in sorted(self.places.items(), key=lambda seat: seat[1]):
            numbers = range(group * copies, (group + 1) * copies)
            if all(number in self.ended for number in numbers):
                del self.places[place]
                self._engine.leave([place])
                if self._on_group is not None:
                    self._on_group(group, [self.ended[number] for number in numbers])
