"""Steps of decoding as CUDA graphs: captured once per size, replayed with one launch each.

A step of a small model is hundreds of small kernels, and on a GPU launching them takes longer than they run. A graph
holds them all. `Graphs` captures a function of no arguments that changes tensors in place, and replays it; where there
is no CUDA it calls the function, so that everything here runs, and is tested, on a CPU.

Not covered: modules whose forward waits for the device or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from oncurve.base.output import warn

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""From a step to what repeats it: the step's operations, on the same tensors, without its Python."""

_WARM_UP = 3
"""Runs before a capture: libraries take their workspaces, compilers compile, tables are made."""


class Graphs:
    """Captured steps by key; `capture` None: steps are called as they are."""

    def __init__(self, capture: Capture | None) -> None:
        self._capture = capture
        self._replays: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._replays)

    def run(self, key: Hashable, step: Callable[[], None], changed: Sequence[Tensor]) -> None:
        """Run the step, or replay what was captured under `key`. What cannot be captured is called from then on.

        step      reads and changes tensors in place, gives back nothing, and never reads a number on the host
        changed   what a second run of it would change again: restored after the runs before the capture
        """
        if self._capture is None:
            step()
            return
        if key not in self._replays:
            before = [tensor.clone() for tensor in changed]
            try:
                self._replays[key] = self._capture(step)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a module does that a graph cannot hold
                reason = str(error).strip().partition("\n")[0]
                warn(f"decoding without CUDA graphs, which is slower: {reason}")
                self._capture, self._replays[key] = None, step
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        self._replays[key]()

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
    alive, pool = WeakSet[Any](), torch.cuda.graph_pool_handle()

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        nonlocal pool
        if not alive:  # a pool ends with the last of its graphs
            pool = torch.cuda.graph_pool_handle()
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
        alive.add(graph)
        replay: Callable[[], None] = graph.replay
        return replay

    return capture
