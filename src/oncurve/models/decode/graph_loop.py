"""The token loop on CUDA, which does not wait for the host: while some steps run, it reads what the steps before wrote.

    drop rows that ended -> pages for those that grow -> admit rows that wait -> run 8 steps -> read the 8 before

A row is the unit: what it held is free as soon as it ends, for a row of any group. Rows stand one after another in the
order in which they were admitted, so that those of a group are neighbours. Pages are taken as rows grow. Where they run
out, the youngest rows are put back and sampled again later, to the same tokens: a row's uniforms are its own. Where the
device's memory runs out, half as many rows go on. The completions are those of `HostLoop`, row by row.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.base.output import warn
from oncurve.models.causal import DecodeRequest, EndedRows, Head, OnEnded, StopStrings, TokenLoop
from oncurve.models.decode.graph_buffers import EOS, GROWING, STEPS_AT_ONCE, GraphBuffers, Wait, pages_of
from oncurve.models.decode.prefill import Run
from oncurve.types import Ending

_ADMIT_SHARE = 0.25
"""Rows are admitted when this share of all is free: a prefill costs many steps however small it is."""

_PROMPT_TOKENS = 1 << 16
"""So many tokens of prompts, as they are padded, are admitted at once: their keys and values are there twice then."""


@dataclass(eq=False)
class _Group:
    """A prompt; `pages`, and `hidden (H,)` that predicts the first token, as long as some of its rows are decoded."""

    prompt: Tensor
    rows: int = 0
    pages: list[int] = field(default_factory=list)
    hidden: Any = None


@dataclass(eq=False)
class _Row:
    """A row of the request. `reach`: the tokens that it has at most after the steps that are under way."""

    number: int
    group: _Group
    pages: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reach: int = 0
    over: bool = False


class GraphLoop:
    """A `TokenLoop` in `buffers`, which outlive it, over a model's body, its module and its head.

    Kept sets have no fixed size, as a graph's tensors do: requests with them go to the loop on the `host`.
    """

    def __init__(
        self, buffers: GraphBuffers, run: Run, module: nn.Module, logits: Head, host: TokenLoop | None = None
    ) -> None:
        self._buffers, self._model, self._host = buffers, (run, module, logits), host

    @torch.no_grad()
    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request, in their order."""
        if request.truncated and self._host is not None:
            return self._host(request, on_group)
        return _Decoding(self._buffers, request, on_group).run(self._model)


class _Decoding:
    """The state of one call of the loop: rows that wait, and rows that are decoded, in the order of the buffers."""

    def __init__(self, buffers: GraphBuffers, request: DecodeRequest, on_group: OnEnded | None) -> None:
        self._buffers, self._request, self._on_group = buffers, request, on_group
        self._keys, self._limits = request.keys.flatten().tolist(), request.limits.flatten().tolist()
        groups, count = list(map(_Group, request.prompts)), len(self._keys)
        self._waiting = deque(_Row(number, groups[number // request.copies]) for number in range(count))
        self._most = min(count, request.max_concurrent or count, buffers.most_rows or count)
        self._ends = tuple(sorted(set(request.eos_ids)))
        self._live: list[_Row] = []
        self._cells: list[tuple[int, int, int]] = []  # of the table, to be written: row, column, page
        self._ended: dict[int, EndedRows] = {}
        self._missing = [request.copies] * len(groups)
        self._begun = False

    def run(self, model: tuple[Run, nn.Module, Head]) -> list[EndedRows]:
        """Decode all rows."""
        wanted, running = self._most, list[tuple[list[_Row], Wait]]()
        while running or self._live or self._waiting:
            before, running = running, self._go_on(model)
            for rows, wait in before:
                self._take(rows, wait)
        if self._most < wanted:
            warn(f"out of memory while sampling {wanted} rows at a time: it is {self._most} from here on")
        return [self._ended[number] for number in range(len(self._keys))]

    def _go_on(self, model: tuple[Run, nn.Module, Head]) -> list[tuple[list[_Row], Wait]]:
        """Change what is decoded, and run some steps: none where there are no rows, or they do not fit in memory."""
        try:
            if not self._begun:
                self._buffers.begin(*model, self._most, self._request.prompts, self._request.max_new_tokens)
                self._begun = True
            self._change()
            rows = list(self._live)
            return [(rows, self._buffers.run(len(rows), self._request.draw, self._ends))] if rows else []
        except torch.OutOfMemoryError:
            if self._most == 1:
                raise
        # After the exception is gone, which holds the tensors of the frames that it came through.
        self._most = self._buffers.most_rows = self._most // 2
        while self._live:
            self._put_back(self._live.pop())
        self._buffers.release()
        self._begun = False
        return []

    def _change(self) -> None:
        """Drop what ended, find pages for the next steps, admit."""
        before, free, self._cells = self._live, self._buffers.free, []
        for row in before:
            if row.over or row.reach == self._limits[row.number]:  # the steps under way write its last token
                self._leave(row)
        self._live = [row for row in before if row.pages]
        for index, row in enumerate(self._live):  # the youngest are the last, and may be put back on the way
            while row.pages and self._needed(row) > len(free):
                self._put_back(self._live.pop())
            if row.pages:
                self._grow(index, row)
        if len(self._live) < len(before):
            self._buffers.keep([index for index, row in enumerate(before) if row.pages], len(before))
        self._admit()
        self._buffers.place(self._cells)

    def _needed(self, row: _Row) -> int:
        """Return the pages that the next steps of a row need, beyond those it has."""
        return pages_of(min(self._limits[row.number], row.reach + STEPS_AT_ONCE)) - len(row.pages)

    def _grow(self, index: int, row: _Row) -> None:
        """Take pages for the next steps of the row at `index`."""
        column = len(row.group.pages) + len(row.pages)
        new = [self._buffers.free.pop() for _ in range(self._needed(row))]
        self._cells += [(index, at, page) for at, page in enumerate(new, column)]
        row.pages += new
        row.reach = min(self._limits[row.number], row.reach + STEPS_AT_ONCE)

    def _admit(self) -> None:
        """Let rows that wait begin, if enough are free."""
        buffers, first, fresh, longest = self._buffers, len(self._live), list[_Group](), 0
        fit = min(self._most - first, len(self._waiting))
        if first and fit < min(len(self._waiting), _ADMIT_SHARE * self._most):
            return
        growing = sum(map(self._grows, self._live))
        while len(self._live) < first + fit:
            row, group, index = self._waiting[0], self._waiting[0].group, len(self._live)
            needed = 0 if group.pages else pages_of(len(group.prompt))
            longer = max(longest, len(group.prompt)) if needed else longest
            if index and needed + self._needed(row) + growing > len(buffers.free):  # one for each that grows
                break
            if fresh and needed and (len(fresh) + 1) * longer > _PROMPT_TOKENS:
                break
            self._live.append(self._waiting.popleft())
            group.rows += 1
            if needed:
                group.pages = [buffers.free.pop() for _ in range(needed)]
                fresh.append(group)
                longest = longer
            self._cells += [(index, column, page) for column, page in enumerate(group.pages)]
            self._grow(index, row)
            growing += self._grows(row)
        if fresh:
            hidden = buffers.insert([group.prompt for group in fresh], [group.pages for group in fresh])
            for group, state in zip(fresh, hidden, strict=True):
                group.hidden = state
        if new := self._live[first:]:
            rows = [(self._keys[r.number], self._limits[r.number], len(r.group.prompt)) for r in new]
            buffers.add(first, rows, [row.group.hidden for row in new])

    def _grows(self, row: _Row) -> bool:
        return pages_of(self._limits[row.number]) > len(row.pages)

    def _leave(self, row: _Row) -> None:
        """Free what a row holds, and what its group holds if it is the last: it is not decoded any more."""
        group, free = row.group, self._buffers.free
        free += row.pages
        row.pages = []
        group.rows -= 1
        if not group.rows:
            free += group.pages
            group.pages, group.hidden = [], None

    def _put_back(self, row: _Row) -> None:
        """Let a row wait again, from its beginning."""
        self._leave(row)
        if not row.over:
            row.over = True  # what the steps under way write of it is not read
            self._waiting.appendleft(_Row(row.number, row.group))

    def _take(self, rows: list[_Row], wait: Wait) -> None:
        """Take the new tokens of `rows`, and the rows that ended."""
        over, fresh, stop = list[tuple[_Row, Ending]](), list[tuple[_Row, int]](), self._request.stop
        for row, state, count, ids, logprobs in zip(rows, *wait(), strict=True):
            if row.over:
                continue
            known = len(row.ids)
            row.ids += ids[: count - known]
            row.logprobs += logprobs[: count - known]
            if stop is not None:
                fresh += [(row, at) for at in range(known, count - (state == EOS))]
            if state != GROWING:
                over.append((row, "eos" if state == EOS else "length"))
        if stop is not None and fresh:
            self._cut(fresh, stop)
        for row, ended in over:
            if not row.over:
                self._end(row, ended, None)

    def _cut(self, fresh: list[tuple[_Row, int]], stop: StopStrings) -> None:
        """End the rows whose new tokens, by their index, completed a stop string."""
        ids = torch.tensor([row.ids[at] for row, at in fresh])
        for index in stop.candidates(ids).nonzero().squeeze(1).tolist():
            row, at = fresh[index]
            if row.over:
                continue
            written = row.ids[: at + 1]
            found = stop.finished(torch.tensor([row.number]), ids[index, None], lambda _, start, w=written: w[start:])  # type: ignore[misc]
            if found:
                del row.ids[at + 1 :], row.logprobs[at + 1 :]
                self._end(row, "stop", found[row.number])

    def _end(self, row: _Row, ended: Ending, text: str | None) -> None:
        """Take a row that ended, and hand over its group if that is complete."""
        if not all(map(math.isfinite, row.logprobs)):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        row.over = True
        self._ended[row.number] = EndedRows(tuple(row.ids), tuple(row.logprobs), ended, text)
        group = row.number // self._request.copies
        self._missing[group] -= 1
        if not self._missing[group] and self._on_group is not None:
            first = group * self._request.copies
            self._on_group(group, [self._ended[number] for number in range(first, first + self._request.copies)])
