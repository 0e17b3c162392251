"""The token loop on CUDA, which does not wait for the host: while some steps run, it reads what the steps before wrote.

    drop rows that ended -> pages for those that grow -> admit rows that wait -> run 8 steps -> read the 8 before

A row is the unit: what it held is free as soon as it ends, for a row of any group. Rows stand one after another in the
order in which they were admitted, so that those of a group are neighbours. Pages are taken as rows grow. Where they run
out, the youngest rows are put back and sampled again later, to the same tokens: a row's uniforms are its own. Where the
device's memory runs out, half as many rows go on. The completions are those of `HostLoop`, row by row.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.base.output import warn
from oncurve.models.causal import DecodeRequest, EndedRows, Head, OnEnded, StopStrings
from oncurve.models.decode.graph_buffers import ENDINGS, STEPS_AT_ONCE, GraphBuffers, Wait, pages_of
from oncurve.models.decode.prefill import Run
from oncurve.models.decode.rows import EndedGroups
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
    """A row of the request, and what is known of it.

    reach   the tokens that it has at most after the steps that are under way.
    text    its text where a stop string ended it.
    over    it has been handed over, or waits again: what the steps under way write of it is not read.
    """

    number: int
    key: int
    limit: int
    group: _Group
    pages: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reach: int = 0
    ended: Ending | None = None
    text: str | None = None
    over: bool = False

    def needed(self) -> int:
        """Return the pages that the next steps need, beyond those that the row has."""
        return pages_of(min(self.limit, self.reach + STEPS_AT_ONCE)) - len(self.pages)

    def grows(self) -> bool:
        """Return whether the row may need a page more."""
        return pages_of(self.limit) > len(self.pages)

    def written(self, end: int, start: int) -> list[int]:
        """Return the row's tokens from `start` up to `end`."""
        return self.ids[start:end]


@dataclass(frozen=True)
class GraphLoop:
    """A `TokenLoop` in `buffers`, which outlive it, over a model's body, its module and its head."""

    buffers: GraphBuffers
    run: Run
    module: nn.Module
    logits: Head

    @torch.no_grad()
    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request, in their order."""
        return _GraphDecoding(self, request, on_group).run()


class _GraphDecoding:
    """The state of one call of the loop: rows that wait, and rows that are decoded, in the order of the buffers."""

    def __init__(self, loop: GraphLoop, request: DecodeRequest, on_group: OnEnded | None) -> None:
        self._buffers, self._request = loop.buffers, request
        self._begin = partial(loop.buffers.begin, loop.run, loop.module, loop.logits)
        keys, limits = request.keys.flatten().tolist(), request.limits.flatten().tolist()
        groups = [group for group in map(_Group, request.prompts) for _ in range(request.copies)]
        self._waiting = deque(map(_Row, range(len(keys)), keys, limits, groups))
        self._most = min(len(keys), request.max_concurrent or len(keys), loop.buffers.most_rows or len(keys))
        self._ends = tuple(sorted(set(request.eos_ids)))
        self._live: list[_Row] = []
        self._cells: list[tuple[int, int, int]] = []  # of the table, to be written: row, column, page
        self._ended = EndedGroups(request, on_group)
        self._begun = False

    def run(self) -> list[EndedRows]:
        """Decode all rows."""
        wanted, running = self._most, list[tuple[list[_Row], Wait]]()
        while running or self._live or self._waiting:
            before, running = running, self._go_on()
            for rows, wait in before:
                self._take(rows, wait)
        if self._most < wanted:
            warn(f"out of memory while sampling {wanted} rows at a time: it is {self._most} from here on")
        return self._ended.rows()

    def _go_on(self) -> list[tuple[list[_Row], Wait]]:
        """Change what is decoded, and run some steps: none where there are no rows, or they do not fit in memory."""
        try:
            if not self._begun:
                self._begin(self._request, self._most)
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
            if row.over or row.reach == row.limit:  # the steps under way write its last token
                self._leave(row)
        self._live = [row for row in before if row.pages]
        for index, row in enumerate(self._live):  # the youngest are the last, and may be put back on the way
            while row.pages and row.needed() > len(free):
                self._put_back(self._live.pop())
            if row.pages:
                self._grow(index, row)
        if len(self._live) < len(before):
            self._buffers.keep([index for index, row in enumerate(before) if row.pages], len(before))
        self._admit()
        self._buffers.place(self._cells)

    def _grow(self, index: int, row: _Row) -> None:
        """Take pages for the next steps of the row at `index`."""
        column = len(row.group.pages) + len(row.pages)
        new = [self._buffers.free.pop() for _ in range(row.needed())]
        self._cells += [(index, at, page) for at, page in enumerate(new, column)]
        row.pages += new
        row.reach = min(row.limit, row.reach + STEPS_AT_ONCE)

    def _admit(self) -> None:
        """Let rows that wait begin, if enough are free."""
        free, first, fresh, longest = self._buffers.free, len(self._live), list[_Group](), 0
        fit = min(self._most - first, len(self._waiting))
        if first and fit < min(len(self._waiting), _ADMIT_SHARE * self._most):
            return
        growing = sum(map(_Row.grows, self._live))
        for index in range(first, first + fit):
            row, group = self._waiting[0], self._waiting[0].group
            needed = 0 if group.pages else pages_of(len(group.prompt))
            if index and needed + row.needed() + growing > len(free):  # one for each that grows
                break
            if needed:
                longest = max(longest, len(group.prompt))
                if fresh and (len(fresh) + 1) * longest > _PROMPT_TOKENS:
                    break
                group.pages = [free.pop() for _ in range(needed)]
                fresh.append(group)
            self._live.append(self._waiting.popleft())
            group.rows += 1
            self._cells += [(index, column, page) for column, page in enumerate(group.pages)]
            self._grow(index, row)
            growing += row.grows()
        if fresh:
            hidden = self._buffers.insert([group.prompt for group in fresh], [group.pages for group in fresh])
            for group, state in zip(fresh, hidden, strict=True):
                group.hidden = state
        if new := self._live[first:]:
            rows = [(row.key, row.limit, len(row.group.prompt)) for row in new]
            self._buffers.add(first, rows, [row.group.hidden for row in new])

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
            row.over = True
            self._waiting.appendleft(_Row(row.number, row.key, row.limit, row.group))

    def _take(self, rows: list[_Row], wait: Wait) -> None:
        """Take the new tokens of `rows`, and the rows that ended."""
        fresh, stop = list[tuple[_Row, int]](), self._request.stop
        for row, state, count, ids, logprobs in zip(rows, *wait(), strict=True):
            if row.over:
                continue
            known = len(row.ids)
            row.ids += ids[: count - known]
            row.logprobs += logprobs[: count - known]
            row.ended = ENDINGS[state]
            if stop is not None:
                fresh += [(row, at) for at in range(known, count - (row.ended == "eos"))]
        if stop is not None and fresh:
            self._cut(fresh, stop)
        for row in rows:
            if row.ended is not None and not row.over:
                row.over = True
                self._ended.add(row.number, EndedRows(tuple(row.ids), tuple(row.logprobs), row.ended, row.text))

    def _cut(self, fresh: list[tuple[_Row, int]], stop: StopStrings) -> None:
        """Cut the rows whose new tokens, by their index, completed a stop string."""
        candidates = stop.candidates(torch.tensor([row.ids[at] for row, at in fresh]))
        for index in candidates.nonzero().squeeze(1).tolist():
            row, at = fresh[index]
            text = stop.finished(row.number, partial(row.written, at + 1)) if row.text is None else None
            if text is not None:
                del row.ids[at + 1 :], row.logprobs[at + 1 :]
                row.ended, row.text = "stop", text
