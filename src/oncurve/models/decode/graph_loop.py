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

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.base.output import warn
from oncurve.models.causal import DecodeRequest, EndedRows, Head, OnEnded
from oncurve.models.decode.graph_buffers import EOS, GROWING, STEPS_AT_ONCE, GraphBuffers, Report, pages_of
from oncurve.models.decode.prefill import Run
from oncurve.types import Ending

_ADMIT_SHARE = 0.25
"""Rows are admitted when this share of all is free: a prefill costs many steps however small it is."""

_PROMPT_TOKENS = 1 << 16
"""So many tokens of prompts are admitted at once: until they are in pages, their keys and values are there twice."""


_Model = tuple[Run, nn.Module, Head]
_Cells = list[tuple[int, int, int]]
"""Pages and where they are in the table: (row, column, page)."""


@dataclass(eq=False)
class _Group:
    """A prompt; `pages`, and `hidden (H,)` that predicts the first token, as long as some of its rows are decoded."""

    number: int
    pages: list[int] = field(default_factory=list)
    rows: int = 0
    hidden: Tensor | None = None


@dataclass(eq=False)
class _Row:
    """A row of the request. `reach`: the tokens that it has at most after the steps that are under way."""

    number: int
    group: _Group
    limit: int
    pages: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reach: int = 0
    over: bool = False

    @property
    def next_pages(self) -> int:
        """Pages that the next steps need, beyond those it has."""
        return pages_of(min(self.limit, self.reach + STEPS_AT_ONCE)) - len(self.pages)


class GraphLoop:
    """A `TokenLoop` in `buffers`, which outlive it, over a model's body, its module and its head."""

    def __init__(self, buffers: GraphBuffers, run: Run, module: nn.Module, logits: Head) -> None:
        self._buffers, self._model = buffers, (run, module, logits)

    @torch.no_grad()
    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request, in their order."""
        return _Decoding(self._buffers, self._model, request, on_group).run()


class _Decoding:
    """One call of the loop: the rows that wait, and those that are decoded, in the order of the buffers."""

    def __init__(
        self,
        buffers: GraphBuffers,
        model: _Model,
        request: DecodeRequest,
        on_group: OnEnded | None,
    ) -> None:
        self._buffers, self._model, self._request, self._on_group = buffers, model, request, on_group
        self._keys, limits = request.keys.flatten().tolist(), request.limits.flatten().tolist()
        groups = [_Group(number) for number in range(len(request.prompts))]
        self._waiting = deque(_Row(n, groups[n // request.copies], limit) for n, limit in enumerate(limits))
        self._most = min(len(limits), request.max_concurrent or len(limits), buffers.most_rows or len(limits))
        self._settings = request.draw, tuple(sorted(set(request.eos_ids)))
        self._live: list[_Row] = []
        self._ended: dict[int, EndedRows] = {}
        self._missing = [request.copies] * len(groups)
        self._begun = False

    def run(self) -> list[EndedRows]:
        """Decode all rows."""
        wanted = self._most
        running: tuple[list[_Row], Report] | None = None
        while running is not None or self._live or self._waiting:
            before, running = running, self._go_on()
            if before is not None:
                self._take(*before)
        if self._most < wanted:
            warn(f"out of memory while sampling {wanted} rows at a time: it is {self._most} from here on")
        return [self._ended[number] for number in range(len(self._keys))]

    def _go_on(self) -> tuple[list[_Row], Report] | None:
        """Change what is decoded, and run some steps; None where there are no rows, or they did not fit in memory."""
        try:
            if not self._begun:
                self._buffers.begin(*self._model, self._most, self._request.prompts, self._request.max_new_tokens)
                self._begun = True
            self._change()
            return (list(self._live), self._buffers.run(len(self._live), *self._settings)) if self._live else None
        except torch.OutOfMemoryError:
            if self._most == 1:
                raise
        self._halve()  # after the exception is gone, which holds the tensors of the frames it came through
        return None

    def _halve(self) -> None:
        """Put all rows back, and go on with half as many in fresh buffers."""
        self._most //= 2
        self._buffers.most_rows = self._most
        while self._live:
            self._put_back(self._live.pop())
        self._buffers.release()
        self._begun = False

    def _change(self) -> None:
        """Drop what ended, find pages for the next steps, admit."""
        buffers, stay, cells = self._buffers, [], _Cells()
        for row in self._live:
            if row.over or row.reach == row.limit:  # the steps under way write its last token
                self._leave(row)
            else:
                stay.append(row)
        for index, row in enumerate(stay):  # the youngest are the last, and may be put back on the way
            while not row.over and row.next_pages > len(buffers.free):
                self._put_back(stay.pop())
            if not row.over:
                cells += self._grow(index, row)
        if len(stay) < len(self._live):
            there = set(stay)
            buffers.keep([index for index, row in enumerate(self._live) if row in there], len(self._live))
        self._live = stay
        buffers.place(cells + self._admit())

    def _grow(self, index: int, row: _Row) -> _Cells:
        """Take pages for the next steps of the row at `index`: the cells of the table that name them."""
        first = len(row.group.pages) + len(row.pages)
        new = [self._buffers.free.pop() for _ in range(row.next_pages)]
        row.pages += new
        row.reach = min(row.limit, row.reach + STEPS_AT_ONCE)
        return [(index, first + column, page) for column, page in enumerate(new)]

    def _admit(self) -> _Cells:
        """Let rows that wait begin, if enough are free: the cells of the table that name their pages."""
        buffers, request, first = self._buffers, self._request, len(self._live)
        fit = min(self._most - first, len(self._waiting))
        if not fit or (first and fit < len(self._waiting) and fit < _ADMIT_SHARE * self._most):
            return []
        cells, prompts, tokens = _Cells(), list[_Group](), 0
        growing = sum(pages_of(row.limit) > len(row.pages) for row in self._live)
        while len(self._live) < first + fit and tokens < _PROMPT_TOKENS:
            row, index = self._waiting[0], len(self._live)
            group, length = row.group, len(request.prompts[row.group.number])
            needed = 0 if group.pages else pages_of(length)
            if index and needed + row.next_pages + growing > len(buffers.free):  # one for each that grows
                break
            self._live.append(self._waiting.popleft())
            group.rows += 1
            if needed:
                group.pages = [buffers.free.pop() for _ in range(needed)]
                prompts.append(group)
                tokens += length
            cells += [(index, column, page) for column, page in enumerate(group.pages)] + self._grow(index, row)
            growing += pages_of(row.limit) > len(row.pages)
        if prompts:
            hidden = buffers.insert([request.prompts[each.number] for each in prompts], [g.pages for g in prompts])
            for group, state in zip(prompts, hidden, strict=True):
                group.hidden = state
        new = self._live[first:]
        if new:
            lengths = [len(request.prompts[row.group.number]) for row in new]
            rows = [(self._keys[r.number], r.limit, n, len(r.group.pages)) for r, n in zip(new, lengths, strict=True)]
            buffers.add(first, rows, [row.group.hidden for row in new if row.group.hidden is not None])
        return cells

    def _leave(self, row: _Row) -> None:
        """Free what a row holds, and what its group holds if it is the last: it is not decoded any more."""
        self._buffers.free += row.pages
        row.group.rows -= 1
        if not row.group.rows:
            self._buffers.free += row.group.pages
            row.group.pages, row.group.hidden = [], None

    def _put_back(self, row: _Row) -> None:
        """Let a row wait again, from its beginning."""
        self._leave(row)
        row.over = True  # what the steps under way write of it is not read
        self._waiting.appendleft(_Row(row.number, row.group, row.limit))

    def _take(self, rows: list[_Row], report: Report) -> None:
        """Take the new tokens of `rows`, and the rows that ended."""
        new = []
        for row, state, count, ids, logprobs in zip(rows, *report.wait(), strict=True):
            if not row.over:
                known = len(row.ids)
                row.ids += ids[: count - known]
                row.logprobs += logprobs[: count - known]
                new.append((row, state, known))
        self._cut(new)
        for row, state, _ in new:
            if state != GROWING and not row.over:
                self._end(row, "eos" if state == EOS else "length", None)

    def _cut(self, new: list[tuple[_Row, int, int]]) -> None:
        """End the rows whose new tokens, from the index `known` on, completed a stop string."""
        stop = self._request.stop
        tokens = [(row, at) for row, state, known in new for at in range(known, len(row.ids) - (state == EOS))]
        if stop is None or not tokens:
            return
        ids = torch.tensor([row.ids[at] for row, at in tokens])
        for index in stop.candidates(ids).nonzero().squeeze(1).tolist():
            row, at = tokens[index]
            if row.over:
                continue

            def written(_: int, start: int, row: _Row = row, end: int = at + 1) -> list[int]:
                return row.ids[start:end]

            found = stop.finished(torch.tensor([row.number]), ids[index : index + 1], written)
            if found:
                del row.ids[at + 1 :], row.logprobs[at + 1 :]
                self._end(row, "stop", found[row.number])

    def _end(self, row: _Row, ended: Ending, text: str | None) -> None:
        """Take a row that ended, and hand over its group if that is complete."""
        if not all(map(math.isfinite, row.logprobs)):
            raise ModelError("the model's logits are not finite (NaN or infinite): its weights are damaged or overflow")
        row.over = True
        self._ended[row.number] = EndedRows(tuple(row.ids), tuple(row.logprobs), ended, text)
        group, copies = row.group.number, self._request.copies
        self._missing[group] -= 1
        if not self._missing[group] and self._on_group is not None:
            self._on_group(group, [self._ended[number] for number in range(group * copies, (group + 1) * copies)])
