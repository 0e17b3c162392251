"""The capture of steps as CUDA graphs: each is recorded once, and repeated with one launch.

A step of a small model is hundreds of small kernels, and on a GPU launching them takes longer than they run. A graph
holds them all.

Not covered: modules whose forward waits for the device or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

Step = Callable[[], None]
"""Reads and changes tensors in place, gives back nothing, and never reads a number on the host."""

Capture = Callable[[Step], Step]
"""From a step to what repeats it: the step's operations, on the same tensors, which it keeps, without its Python."""

_WARM_UP = 3
"""Runs before a capture: libraries take their workspaces, compilers compile, tables are made."""


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
