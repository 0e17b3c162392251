"""Steps of decoding as CUDA graphs: captured once per size, replayed with one launch each.

A step of a small model is hundreds of small kernels, and on a GPU launching them takes longer than they run. A graph
holds them all. `Graphs` captures a function of no arguments that changes tensors in place, and replays it; where there
is no CUDA it calls the function, so that everything here runs, and is tested, on a CPU.

    Room            what the graphs of one model read and change, kept from one rollout to the next
    GraphDecoder    a `Decoder` whose steps are such functions

`stepping.py` takes head, sampler and the test for the end into the graph, too.

Covered: rows that join and leave, several sizes side by side, weights that move to other memory (graphs are captured
anew). Not covered: modules whose forward waits for the device or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.models.causal import check_decoder
from oncurve.models.lengths import longest_row_of
from oncurve.models.prefill import Prefixes, Run, prefill
from oncurve.models.static import Grid, StaticCache, StaticContext
from oncurve.output import warn

__all__ = ["Capture", "GraphDecoder", "Graphs", "Room", "capture_on"]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""From a step to what repeats it: the step's operations, on the same tensors, without its Python."""

_WARM_UP = 3
"""Runs before a capture: libraries take their workspaces, compilers compile, tables are made."""

_FIRST_WIDTH = 128
"""Slots of the suffix that the smallest graph looks at; the others look at twice as many, and so on."""

_ROUNDED = 64
"""Lengths of a cache are multiples of this, so that rollouts of about the same size share graphs."""


class Graphs:
    """Captured steps by key; `capture` None: steps are called as they are."""

    def __init__(self, capture: Capture | None) -> None:
        self._capture = capture
        self._replays: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._replays)

    def run(self, key: Hashable, step: Callable[[], None], changed: Sequence[Tensor]) -> None:
        """Run the step, or replay what was captured under `key`. What cannot be captured is called from then on.

        step      reads and changes tensors in place, gives back nothing, and never looks at a number on the host
        changed   what a second run of it would change again: put back after the runs before the capture
        """
        if self._capture is None:
            step()
            return
        if key not in self._replays:
            before = [tensor.clone() for tensor in changed]
            replay = self._captured(self._capture, step)
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
            self._replays[key] = replay
        self._replays[key]()

    def _captured(self, capture: Capture, step: Callable[[], None]) -> Callable[[], None]:
        try:
            return capture(step)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a module does that a graph cannot hold
            reason = str(error).strip().partition("\n")[0]
            warn(f"decoding without CUDA graphs, which is slower: {reason}")
            self._capture = None
            return step

    def forget(self) -> None:
        """Give the captured steps back, and the memory they hold."""
        self._replays.clear()


def capture_on(device: torch.device) -> Capture | None:
    """How steps are captured on a device: as CUDA graphs that share one pool of memory; None where there are none.

    Sharing is safe because a step gives nothing back: what it makes on the way is of no use once it is through.
    """
    if device.type != "cuda":
        return None
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Callable[[], None]) -> Callable[[], None]:
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
        replay: Callable[[], None] = graph.replay
        return replay

    return capture


class Room:
    """Cache, newest ids and hidden states of a grid of rows, and the graphs that work in them.

    run       the model's body
    module    the model, whose weights graphs read where they lay when they were captured
    """

    def __init__(self, run: Run, module: nn.Module, device: torch.device, capture: Capture | None) -> None:
        self.run = run
        self.device = device
        self.graphs = Graphs(capture)
        self.tenant: tuple[Hashable, Any] | None = None
        """What a rollout leaves for the next, and by which settings that knows it."""
        self._module = module
        self._addresses: tuple[int, ...] = ()
        self._last: int | None = None
        self._set(Grid(0, 0, 0, 0))

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a model has no room: graphs read the weights of the one they were captured of."""

    def _set(self, grid: Grid) -> None:
        self.graphs.forget()
        self.cache = StaticCache(grid, self.device)
        self.ids = self.cache.steps.new_zeros(grid.rows)
        self.hidden = torch.empty(0)

    @property
    def grid(self) -> Grid:
        """The sizes of all this."""
        return self.cache.grid

    def prepare(self, needed: Grid) -> None:
        """An empty room for `needed`: the one that is there, if it is not much too large and the weights lie still."""
        addresses = tuple(tensor.data_ptr() for tensor in _tensors(self._module))
        longest = longest_row_of(self._module)
        last = None if longest is None else max(0, longest - 2)
        if not _suits(self.grid, needed):
            self._set(_rounded(needed))
        elif (addresses, last) != (self._addresses, self._last):
            self.graphs.forget()
        self._addresses, self._last = addresses, last
        self.cache.lengths.zero_()
        self.cache.steps.zero_()

    def enlarge(self, needed: Grid) -> None:
        """Room for `needed` beside what is there, in the same places."""
        old, hidden = self.cache, self.hidden
        grid = old.grid.joined(_rounded(needed))
        self._set(grid)
        self.cache = old.copied(grid)
        if len(hidden):
            self.hidden = hidden.new_zeros(grid.rows, hidden.shape[1])

    def release(self) -> None:
        """Give all memory back."""
        self.tenant = None
        self._set(Grid(0, 0, 0, 0))

    def seat(self, place: int, prefixes: Prefixes, prompt: int, hidden: Tensor) -> None:
        """Put a group whose prompt ended in `hidden (H,)` in a place."""
        if not len(self.hidden):
            self.hidden = hidden.new_zeros(self.grid.rows, len(hidden))
        self.cache.put(place, prefixes, prompt)
        self.hidden[self.cache.rows_of(place)] = hidden

    def move(self, source: int, target: int) -> None:
        """Seat the group of one place in another."""
        self.cache.move(source, target)
        of, to = self.cache.rows_of(source), self.cache.rows_of(target)
        self.ids[to], self.hidden[to] = self.ids[of], self.hidden[of]

    def sizes(self, ages: dict[int, int]) -> tuple[int, int]:
        """Places and slots of the graph that holds a step of the places `ages`, whose rows have so many tokens."""
        places, width = self.grid.groups, _FIRST_WIDTH
        while places > 1 and -(-places // 2) > max(ages):
            places = -(-places // 2)
        while width <= max(ages.values()):
            width *= 2
        return places, min(width, self.grid.new_tokens)

    def body(self, places: int, width: int) -> None:
        """Run `ids` of the first places, and leave what predicts the next in `hidden`. Steps are not counted."""
        rows = places * self.grid.copies
        context = StaticContext(self.cache, places, width)
        # A row that has ended is run beside the others until it leaves: it must not run out of the model's positions.
        positions = self.cache.positions(places)
        positions = positions if self._last is None else positions.clamp(max=self._last)
        self.hidden[:rows] = self.run(self.ids[:rows], positions, context)


class GraphDecoder:
    """A `Decoder` over a `Room`, which is its alone while it is used. Never records a gradient."""

    def __init__(self, room: Room, prompts: Sequence[Tensor], copies: Sequence[int], max_new_tokens: int) -> None:
        check_decoder(prompts, copies)
        self._room, self._limit = room, max_new_tokens
        self._ages: dict[int, int] = {}
        self._live: list[tuple[int, int, int]] = []  # group, place, row of the place
        self._group_count = 0
        room.prepare(self._grid(prompts, copies))
        self.groups = torch.empty(0, dtype=torch.int64, device=room.device)
        self.first_hidden = self.join(prompts, copies)

    def _grid(self, prompts: Sequence[Tensor], copies: Sequence[int]) -> Grid:
        return Grid(len(prompts), max(copies), max(prompt.shape[0] for prompt in prompts), self._limit)

    @torch.no_grad()
    def join(self, prompts: Sequence[Tensor], copies: Sequence[int]) -> Tensor:
        """See `Decoder.join`."""
        check_decoder(prompts, copies)
        first_hidden, prefixes = prefill(self._room.run, prompts, self._room.device)
        needed, there = self._grid(prompts, copies), self._room.grid
        needed = Grid(needed.groups + len(self._ages), needed.copies, needed.prompt_tokens, needed.new_tokens)
        if there.joined(needed) != there:
            self._room.enlarge(needed)
        free = (place for place in range(self._room.grid.groups) if place not in self._ages)
        for prompt, (place, count) in enumerate(zip(list(free), copies, strict=False)):
            self._room.seat(place, prefixes, prompt, first_hidden[prompt])
            self._ages[place] = 0
            self._live += [(self._group_count + prompt, place, row) for row in range(count)]
        self._group_count += len(prompts)
        self._settle()
        return first_hidden

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """See `Decoder.step`."""
        room = self._room
        room.ids.index_copy_(0, self._rows, ids.to(room.device))
        key = room.sizes(self._ages)
        room.graphs.run(("decode", *key), partial(self._step, *key), [room.cache.steps])
        self._ages = {place: age + 1 for place, age in self._ages.items()}
        return room.hidden.index_select(0, self._rows)

    def _step(self, places: int, width: int) -> None:
        room = self._room
        room.body(places, width)
        # Rows that were dropped go on beside the others: they must not run out of their room.
        room.cache.steps[: places * room.grid.copies].add_(1).clamp_(max=room.grid.new_tokens - 1)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """See `Decoder.keep`."""
        self._live = [self._live[row] for row in rows.tolist()]
        used = {place for _, place, _ in self._live}
        self._ages = {place: age for place, age in self._ages.items() if place in used}
        self._gather()
        self._settle()

    def _gather(self) -> None:
        """Move groups down where that makes a smaller graph do."""
        count, moved = len(self._ages), {}
        if not count or self._room.sizes(dict.fromkeys(range(count), 0)) == self._room.sizes(
            dict.fromkeys(self._ages, 0)
        ):
            return
        free = [place for place in range(count) if place not in self._ages]
        for source, target in zip(sorted(place for place in self._ages if place >= count), free, strict=True):
            self._room.move(source, target)
            self._ages[target] = self._ages.pop(source)
            moved[source] = target
        self._live = [(group, moved.get(place, place), row) for group, place, row in self._live]

    def _settle(self) -> None:
        """What follows from the rows that are live."""
        copies, device = self._room.grid.copies, self._room.device
        self.groups = torch.tensor([group for group, _, _ in self._live], dtype=torch.int64, device=device)
        self._rows = torch.tensor(
            [place * copies + row for _, place, row in self._live], dtype=torch.int64, device=device
        )


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _suits(there: Grid, needed: Grid) -> bool:
    return (
        (there.groups, there.copies) == (needed.groups, needed.copies)
        and needed.prompt_tokens <= there.prompt_tokens <= 2 * _up(needed.prompt_tokens)
        and needed.new_tokens <= there.new_tokens <= 2 * _up(needed.new_tokens)
    )


def _rounded(grid: Grid) -> Grid:
    return Grid(grid.groups, grid.copies, _up(grid.prompt_tokens), _up(grid.new_tokens))


def _up(tokens: int) -> int:
    return -(-tokens // _ROUNDED) * _ROUNDED
