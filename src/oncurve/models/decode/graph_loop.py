"""The token loop on CUDA, which should not wait for the host: many steps at a time, and the state of the rows between.

    admit groups into free slots -> run 16 steps -> poll -> take rows that ended -> release slots of whole groups

The same completions as `HostLoop`, row by row; what a row draws beyond its end is never written. A slot holds a group
and is free again when the last of its rows has ended.
"""

from __future__ import annotations

import math

import torch

from oncurve.base.errors import ModelError
from oncurve.models.causal import DecodeRequest, EndedRows, Head, OnEnded
from oncurve.models.decode.cuda_graphs import GraphBuffers
from oncurve.models.decode.graph_rows import EOS, GROWING, GraphRows
from oncurve.types import Ending

STEPS_AT_ONCE = 16
"""Steps between two polls: a row that has ended is computed for nothing until the next."""


class GraphLoop:
    """A `TokenLoop` in `buffers`, which outlive it; `logits` is the model's head."""

    def __init__(self, buffers: GraphBuffers, logits: Head) -> None:
        self._buffers, self._logits = buffers, logits

    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request, in their order."""
        rows, prompts = self.rows_for(request), request.prompts
        rows.begin(request.groups_at_once, max(prompt.shape[0] for prompt in prompts), request.max_new_tokens)
        decoding = _GraphDecoding(rows, request, on_group)
        waiting = 0
        while waiting < len(prompts) or decoding.group_in:
            count = min(len(rows.free), len(prompts) - waiting)
            if count:
                groups = slice(waiting, waiting + count)
                slots = rows.admit(prompts[groups], request.keys[groups], request.limits[groups])
                decoding.group_in |= {slot: waiting + index for index, slot in enumerate(slots)}
                waiting += count
            rows.run(STEPS_AT_ONCE)
            decoding.poll()
        return [decoding.ended[number] for number in range(request.keys.numel())]

    def rows_for(self, request: DecodeRequest) -> GraphRows:
        """Return rows for the request: those of the last rollout, with their graphs, unless sampler, G or `eos_ids`
        differ.
        """
        settings = (request.copies, request.draw, tuple(sorted(set(request.eos_ids))))
        owner = self._buffers.owner
        if owner is None or owner[0] != settings:
            rows = GraphRows(self._buffers, request.copies, self._logits, request.draw, request.eos_ids)
            self._buffers.owner = owner = settings, rows
        found: GraphRows = owner[1]
        return found


class _GraphDecoding:
    """One call of the loop: which group is in which slot, and which rows have ended."""

    def __init__(self, rows: GraphRows, request: DecodeRequest, on_group: OnEnded | None) -> None:
        self._rows, self._copies, self._stop, self._on_group = rows, request.copies, request.stop, on_group
        self.group_in: dict[int, int] = {}
        self.ended: dict[int, EndedRows] = {}
        self._searched: dict[int, int] = {}  # tokens of a row that have been searched for stop strings

    def poll(self) -> None:
        """Take the rows that ended, and release the slots of groups that are complete."""
        status, copies = self._rows.poll(), self._copies
        numbers = {
            slot * copies + copy: group * copies + copy
            for slot, group in self.group_in.items()
            for copy in range(copies)
        }
        there = {row: number for row, number in numbers.items() if number not in self.ended}
        over = {row for row in there if status.states[row] != GROWING}
        wanted = list(there) if self._stop is not None else sorted(over)
        if not wanted:
            return
        written = self._rows.written(wanted, max(status.counts[row] for row in wanted))
        stopped = []
        for row, tokens, logprobs in zip(wanted, *written, strict=True):
            count, by_eos = status.counts[row], status.states[row] == EOS
            cut = self._cut(there[row], tokens[:count], by_eos)
            if cut is not None:
                self._take(there[row], tokens, logprobs, cut[0], "stop", cut[1])
                stopped.append(row)
            elif row in over:
                self._take(there[row], tokens, logprobs, count, "eos" if by_eos else "length", None)
        if stopped:
            self._rows.end(stopped)
        self._hand_over()

    def _cut(self, number: int, tokens: list[int], by_eos: bool) -> tuple[int, str] | None:
        """Return how many tokens, and the text, of a row that a stop string ended; each new token is searched once."""
        if self._stop is None:
            return None
        searched = self._searched.get(number, 0)
        self._searched[number] = len(tokens)
        for count in range(searched + 1, len(tokens) + (0 if by_eos else 1)):

            def written(_: int, start: int, count: int = count) -> list[int]:
                return tokens[start:count]

            found = self._stop.finished(torch.tensor([number]), torch.tensor(tokens[count - 1 : count]), written)
            if found:
                return count, found[number]
        return None

    def _take(
        self, number: int, tokens: list[int], logprobs: list[float], count: int, ended: Ending, text: str | None
    ) -> None:
        if not all(map(math.isfinite, logprobs[:count])):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        self.ended[number] = EndedRows(tuple(tokens[:count]), tuple(logprobs[:count]), ended, text)

    def _hand_over(self) -> None:
        """Return the groups whose rows have all ended."""
        copies = self._copies
        for slot, group in sorted(self.group_in.items(), key=lambda item: item[1]):
            numbers = range(group * copies, (group + 1) * copies)
            if all(number in self.ended for number in numbers):
                del self.group_in[slot]
                self._rows.release([slot])
                if self._on_group is not None:
                    self._on_group(group, [self.ended[number] for number in numbers])
