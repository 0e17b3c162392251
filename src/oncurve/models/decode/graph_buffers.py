"""Rows that are decoded in CUDA graphs: tensors that stay where they are, and whole steps without the host.

A step is head, sampler, the test for the end and the model's body. What a row needs lies in tensors over the rows. A
row that has ended is computed with the others until the host takes it out, and writes to page 0, which no row has.

    state    (6, R)         of each row: how it stands, its tokens, key, last token's index, own first place, padding.
    table    (R, columns)   the pages of each row, the prompt's before its own.
    hidden   (R, H)         what predicts each row's next token.
    layers                  keys and values in pages, of all rows and prompts (`paged_attention`).
    written  (2, S, R)      tokens and log-probabilities of the S steps between two reports.

The host decides between steps which rows there are and which pages they have (`graph_loop`). A step of a small model is
hundreds of small kernels, and on a GPU launching them takes longer than they run. A graph holds them all. Steps are
captured once per number of rows and settings, and serve every later rollout.

Not covered: modules whose forward waits for the device or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from oncurve.base.output import warn
from oncurve.machine.compiled import compiled
from oncurve.models.adapters.layer import factors_in_use
from oncurve.models.causal import DecodeRequest, Draw, Head
from oncurve.models.decode.paged_attention import PAGE, Layers, PagedContext
from oncurve.models.decode.prefill import Run, prefill
from oncurve.randomness import uniform_at
from oncurve.types import Ending, sent

STEPS_AT_ONCE = 8
"""Steps between two reports: a row that ends is computed for nothing until the host has read the next one. At least as
many as run before a capture: no row has pages for more."""

ENDINGS: tuple[Ending | None, ...] = (None, "eos", "length")
"""What ended a row, by its state; None: it grows."""

_GROWING, _EOS, _LENGTH = range(3)

_STATE, _COUNT, _KEY, _LAST, _FIRST, _PADDING = range(6)

_SHARE_OF_MEMORY = 0.5
"""Of the free memory, for keys and values: the rest is the update's."""

_MOST_MODELS = 8
"""Models, or states of an adapter, whose graphs are kept."""

_FEWEST_COLUMNS = 16
"""Pages of a row that there is room for in the table: a rollout of longer rows has its steps captured again."""

_PROMPT_TOKENS = 16384
"""Tokens of one piece of a prefill."""


Step = Callable[[], None]
"""Reads and changes tensors in place, gives back nothing, and never reads a number on the host."""

Capture = Callable[[Step], Step]
"""From a step to what repeats it: the step's operations, on the same tensors, which it keeps, without its Python."""

_WARM_UP = 3
"""Runs before a capture: libraries take their workspaces, compilers compile, tables are made."""

Wait = Callable[[], tuple[list[int], list[int], list[list[int]], list[list[float]]]]
"""Waits for some steps to end: of each row its state, its number of tokens, and S tokens and log-probabilities, the
newest last."""


def pages_of(tokens: int) -> int:
    """Return how many pages hold so many tokens."""
    return -(-tokens // PAGE)


def graph_rows(rows: int) -> int:
    """Return the rows of the graph for `rows` rows: a power of two, from 16 on one of four steps to the next."""
    step = 1 << (rows - 1).bit_length() - (3 if rows > 16 else 0) if rows > 1 else 1
    return -(-rows // step) * step


def free_bytes(device: torch.device) -> float:
    """Return the bytes that could be allocated, including those that torch keeps; any number on a CPU."""
    if device.type != "cuda":
        return float("inf")
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + kept)


class GraphBuffers:
    """The tensors of at most R rows, and the graphs that work in them; kept from one rollout to the next.

    A model's copies share them, one rollout after another: graphs are kept by the addresses of the weights they read.

    capture   None: steps are called as they are, so that everything here runs, and is tested, on a CPU
    """

    most_rows: int | None = None
    """At most so many rows, since more did not fit into memory; None: they always have."""

    def __init__(self, device: torch.device, capture: Capture | None) -> None:
        self.device, self.capture = device, capture
        self.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphBuffers:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Another process has buffers of its own."""
        return type(None), ()

    def release(self) -> None:
        """Free all memory."""
        self.graphs: dict[tuple[int, ...], dict[Hashable, Step]] = {}
        self.rows = self._columns = self._pages = 0
        self.layers: dict[int, Sequence[Tensor]] = {}
        self.free: list[int] = []
        self.state = self.table = self.hidden = self._written = torch.empty(0)

    def begin(self, run: Run, module: nn.Module, logits: Head, request: DecodeRequest, rows: int) -> None:
        """Start a request of at most `rows` rows at a time: there are none yet, and all pages are free.

        run        the model's body
        module     the model, whose weights may have moved since graphs were captured: those are not used then
        logits     the model's head
        """
        self._run, self._logits, prompts = run, logits, request.prompts
        own, shared = pages_of(request.max_new_tokens), pages_of(max(map(len, prompts)))
        columns = max(_FEWEST_COLUMNS, 1 << (own + shared - 1).bit_length())
        pages = 1 + rows * own + min(rows, len(prompts)) * shared
        if rows > self.rows or columns > self._columns or pages > 2 * self._pages:
            hidden, prefixes = prefill(self._run, [prompts[0][:1]], self.device)
            sizes = max(rows, self.rows), max(columns, self._columns), max(pages, self._pages)
            self.allocate(*sizes, hidden, prefixes.layers)
        self._model = tuple(x.data_ptr() for x in chain(module.parameters(), module.buffers(), factors_in_use(module)))
        if self._model not in self.graphs and len(self.graphs) == _MOST_MODELS:
            self.graphs.clear()
        self.free = list(self._all_pages)
        self.state[_STATE].fill_(_LENGTH)
        self._tick.zero_()

    def allocate(self, rows: int, columns: int, pages: int, hidden: Tensor, layers: Layers) -> None:
        """Make the tensors; `hidden (·, H)` and `layers (·, h_kv, ·, d)` are examples.

        Where memory is short there are fewer pages, but enough for one row.
        """
        self.release()
        self.rows, self._columns, self._pages = rows, columns, pages
        self.state = torch.zeros(6, rows, dtype=torch.int64, device=self.device)
        self.table = torch.zeros(rows, columns, dtype=torch.int32, device=self.device)
        self._written = torch.zeros(2, STEPS_AT_ONCE, rows, dtype=torch.float64, device=self.device)
        self._tick = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.hidden = hidden.new_zeros(rows, hidden.shape[1])
        bytes_of_page = PAGE * sum(x[0, :, 0].nbytes for pair in layers.values() for x in pair)
        if pages * bytes_of_page > (room := _SHARE_OF_MEMORY * free_bytes(self.device)):
            pages = max(1 + columns, int(room / bytes_of_page))
        for layer, pair in layers.items():
            self.layers[layer] = [x.new_zeros(pages * PAGE, x.shape[1], x.shape[3]) for x in pair]
        self._all_pages = range(pages - 1, 0, -1)

    def _sent(self, numbers: Any) -> Tensor:
        """Return integers on the device, without waiting for it."""
        return sent([torch.as_tensor(numbers, dtype=torch.int64)], self.device)[0]

    def insert(self, prompts: Sequence[Tensor], pages: Sequence[Sequence[int]]) -> Tensor:
        """Compute prompts, and keep them in their pages: the hidden states `(M, H)` of their last tokens."""
        hidden, prefixes = prefill(self._run, prompts, self.device, _PROMPT_TOKENS)
        places = torch.zeros(len(prompts), prefixes.longest, dtype=torch.int64)  # what is padded: page 0
        for line, prompt, numbers in zip(places, prompts, pages, strict=True):
            slots = (torch.tensor(numbers)[:, None] * PAGE + torch.arange(PAGE)).flatten()
            line[: len(prompt)] = slots[-len(prompt) :]
        there = self._sent(places.flatten())
        for layer, pair in prefixes.layers.items():
            for stored, new in zip(self.layers[layer], pair, strict=True):
                stored.index_copy_(0, there, new.transpose(1, 2).flatten(0, 1))
        return hidden

    def keep(self, kept: Sequence[int], rows: int) -> None:
        """Go on with these of `rows` rows, by ascending index: they are the first ones then."""
        index = self._sent(kept)
        for tensor, axis in ((self.state, 1), (self.hidden, 0), (self.table, 0)):
            tensor.narrow(axis, 0, len(kept)).copy_(tensor.index_select(axis, index))
        self.state[:, len(kept) : rows] = _LENGTH  # and as their keys: nothing is drawn for what has moved

    def add(self, first: int, rows: Sequence[tuple[int, int, int]], hidden: Sequence[Tensor]) -> None:
        """Begin rows `first`, `first` + 1, ...: (key, limit, tokens of the prompt) and `hidden (H,)`."""
        new = [(_GROWING, 0, key, limit - 1, pages_of(tokens) * PAGE, -tokens % PAGE) for key, limit, tokens in rows]
        self.state[:, first : first + len(rows)] = self._sent(new).t()
        self.hidden[first : first + len(rows)] = torch.stack(list(hidden))

    def place(self, cells: Sequence[tuple[int, int, int]]) -> None:
        """Write pages into the table: (row, column, page)."""
        if cells:
            row, column, page = self._sent(cells).unbind(1)
            self.table.index_put_((row, column), page.to(torch.int32))

    def run(self, rows: int, draw: Draw, ends: tuple[int, ...]) -> Wait:
        """Run `STEPS_AT_ONCE` tokens for the first `rows` rows; any of `ends` ends one."""
        size = min(graph_rows(rows), self.rows)
        graphs = self.graphs.setdefault(self._model, {})
        if (size, draw, ends) not in graphs:
            graphs[size, draw, ends] = self._captured(partial(self._step, size, draw, self._sent(ends)))
        for _ in range(STEPS_AT_ONCE):
            graphs[size, draw, ends]()
        report = torch.cat([self.state[:2, :rows].double(), self._written[:, :, :rows].flatten(0, 1)])
        report = report.to("cpu", non_blocking=True)
        arrived = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None

        def wait() -> tuple[list[int], list[int], list[list[int]], list[list[float]]]:
            if arrived is not None:
                arrived.synchronize()
            states, counts = report[:2].long().tolist()
            ids, logprobs = report[2:].chunk(2)
            return states, counts, ids.long().t().tolist(), logprobs.t().tolist()

        return wait

    def _captured(self, step: Step) -> Step:
        """Return what repeats the step: the step itself where it cannot be captured, as every one from then on.

        What runs before the capture leaves no trace.
        """
        if self.capture is None:
            return step
        changed = [self.state, self.hidden, self._written, self._tick]
        before = [tensor.clone() for tensor in changed]
        try:
            step = self.capture(step)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a module does that a graph cannot hold
            reason = str(error).strip().partition("\n")[0]
            warn(f"decoding without CUDA graphs, which is slower: {reason}")
            self.capture = None
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)
        return step

    def _step(self, rows: int, draw: Draw, ends: Tensor) -> None:
        state, table, hidden = self.state[:, :rows], self.table[:rows], self.hidden[:rows]
        ids, logprobs = draw(self._logits(hidden), _uniforms(state[_KEY], state[_COUNT]))
        new = torch.stack([ids.double(), logprobs.double()])
        self._written[:, :, :rows].index_copy_(1, self._tick, new[:, None])
        self._tick.add_(1).remainder_(STEPS_AT_ONCE)
        progress, positions, lasts, places = _advance(ids, state, table, ends)
        state[:2].copy_(progress)
        context = PagedContext(self.layers, table, state[_PADDING], lasts, places)
        hidden.copy_(self._run(ids, positions, context))


_uniforms = compiled(uniform_at)


@compiled
def _advance(ids: Tensor, state: Tensor, table: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what follows from the tokens `ids (n,)` just drawn.

    The new states and counts `(2, n)`. And of the rows that go on, `(n,)` each: the token's position in its text, the
    end of what it sees, and the slot that it is written to. The others write to slot 0, at position 0; they see one
    token.
    """
    over = torch.where(state[_COUNT] >= state[_LAST], _LENGTH, _GROWING)
    if len(ends):
        over = torch.where((ids[:, None] == ends).any(1), _EOS, over)
    grew = state[_STATE] == _GROWING
    states = torch.where(grew, over, state[_STATE])
    goes_on = states == _GROWING
    at = torch.where(goes_on, state[_FIRST] + state[_COUNT], state[_PADDING])
    page = table.gather(1, (at // PAGE)[:, None])[:, 0].to(torch.int64)
    places = torch.where(goes_on, page * PAGE + at % PAGE, 0)
    return torch.stack([states, state[_COUNT] + grew]), at - state[_PADDING], at + 1, places


def capture_on(device: torch.device) -> Capture | None:
    """Return how steps are captured on a device: as CUDA graphs that share one pool of memory; None where there are
    none.

    Sharing is safe because a step returns nothing: its intermediate tensors are not used after it.
    """
    if device.type != "cuda":
        return None
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    alive = WeakKeyDictionary[Any, Step]()  # a pool ends with the last of its graphs

    def capture(step: Step) -> Step:
        pool = next((other.pool() for other in alive), None)
        with torch.cuda.device(device):
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    step()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device meanwhile: only what this one does is captured.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                step()
        alive[graph] = step
        replay: Step = graph.replay
        return replay

    return capture
