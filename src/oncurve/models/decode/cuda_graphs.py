"""Steps of decoding as CUDA graphs: captured once per size, replayed with one launch each.

A step of a small model is hundreds of small kernels, and on a GPU launching them takes longer than they run. A graph
holds them all. `Graphs` captures a function of no arguments that changes tensors in slot, and replays it; where there
is no CUDA it calls the function, so that everything here runs, and is tested, on a CPU.

    GraphBuffers    what the graphs of one model read and change, kept from one rollout to the next

`graph_rows.py` puts head, sampler and the test for the end into the graph, too.

Covered: rows that join and leave, graphs of several sizes, weights that move to other memory, other factors of an
adapter (graphs are captured again). Not covered: modules whose forward waits for the device or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.base.output import warn
from oncurve.models.adapters import factors_in_use
from oncurve.models.decode.prefill import Prefixes, Run
from oncurve.models.decode.static_cache import CacheShape, StaticCache, StaticContext
from oncurve.models.layers import longest_row_of

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""From a step to what repeats it: the step's operations, on the same tensors, without its Python."""

_WARM_UP = 3
"""Runs before a capture: libraries take their workspaces, compilers compile, tables are made."""

_FIRST_WIDTH = 128
"""Positions of the suffix that the smallest graph reads; the next reads twice as many, and so on."""

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

        step      reads and changes tensors in slot, gives back nothing, and never reads a number on the host
        changed   what a second run of it would change again: restored after the runs before the capture
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
        """Free the captured steps and their memory."""
        self._replays.clear()


def capture_on(device: torch.device) -> Capture | None:
    """Return how steps are captured on a device: as CUDA graphs that share one pool of memory; None where there are
    none.

    Sharing is safe because a step returns nothing: its intermediate tensors are not used after it.
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


class GraphBuffers:
    """Cache, newest ids and hidden states of the rows of all slots, and the graphs that work in them.

    run       the model's body
    module    the model, whose weights graphs read where they were when the graphs were captured
    """

    def __init__(self, run: Run, module: nn.Module, device: torch.device, capture: Capture | None) -> None:
        self.run = run
        self.device = device
        self.graphs = Graphs(capture)
        self.owner: tuple[Hashable, Any] | None = None
        """The rows of the last rollout, and the settings by which the next one tells whether they fit."""
        self._module = module
        self._addresses: tuple[int, ...] = ()
        self._last: int | None = None
        self._set(CacheShape(0, 0, 0, 0))

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a model has no buffers: graphs read the weights of the one they were captured of."""

    def _set(self, shape: CacheShape) -> None:
        self.graphs.forget()
        self.cache = StaticCache(shape, self.device)
        self.ids = self.cache.steps.new_zeros(shape.rows)
        self.hidden = torch.empty(0)

    @property
    def shape(self) -> CacheShape:
        """The sizes of the cache."""
        return self.cache.shape

    def prepare(self, needed: CacheShape) -> None:
        """Empty buffers for `needed`: those there are, unless they are much too large or the weights have moved."""
        addresses = tuple(tensor.data_ptr() for tensor in _tensors(self._module))
        longest = longest_row_of(self._module)
        last = None if longest is None else max(0, longest - 2)
        if not _suits(self.shape, needed):
            self._set(_rounded(needed))
        elif (addresses, last) != (self._addresses, self._last):
            self.graphs.forget()
        self._addresses, self._last = addresses, last
        self.cache.lengths.zero_()
        self.cache.steps.zero_()

    def release(self) -> None:
        """Free all memory."""
        self.owner = None
        self._set(CacheShape(0, 0, 0, 0))

    def insert(self, slot: int, prefixes: Prefixes, prompt: int, hidden: Tensor) -> None:
        """Put a group whose prompt ended in `hidden (H,)` into a slot."""
        if not len(self.hidden):
            self.hidden = hidden.new_zeros(self.shape.rows, len(hidden))
        self.cache.insert(slot, prefixes, prompt)
        self.hidden[self.cache.rows_of(slot)] = hidden

    def sizes(self, ages: dict[int, int]) -> tuple[int, int]:
        """Return slots and positions of the graph that holds a step of the slots `ages`, whose rows have so many
        tokens.
        """
        slots, width = self.shape.groups, _FIRST_WIDTH
        while slots > 1 and -(-slots // 2) > max(ages):
            slots = -(-slots // 2)
        while width <= max(ages.values()):
            width *= 2
        return slots, min(width, self.shape.new_tokens)

    def body(self, slots: int, width: int) -> None:
        """Run `ids` of the first slots, and leave what predicts the next in `hidden`. Steps are not counted."""
        rows = slots * self.shape.copies
        context = StaticContext(self.cache, slots, width)
        # A row that has ended is run with the others until it is released: it must stay within the model's positions.
        positions = self.cache.positions(slots)
        positions = positions if self._last is None else positions.clamp(max=self._last)
        self.hidden[:rows] = self.run(self.ids[:rows], positions, context)


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    yield from factors_in_use(module)


def _suits(there: CacheShape, needed: CacheShape) -> bool:
    return (
        (there.groups, there.copies) == (needed.groups, needed.copies)
        and needed.prompt_tokens <= there.prompt_tokens <= 2 * _up(needed.prompt_tokens)
        and needed.new_tokens <= there.new_tokens <= 2 * _up(needed.new_tokens)
    )


def _rounded(shape: CacheShape) -> CacheShape:
    return CacheShape(shape.groups, shape.copies, _up(shape.prompt_tokens), _up(shape.new_tokens))


def _up(tokens: int) -> int:
    return -(-tokens // _ROUNDED) * _ROUNDED
