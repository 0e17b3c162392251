"""What everything that computes does to its process first: the heap, the threads, the watch over the processors."""

from __future__ import annotations

import torch

from oncurve import processors
from oncurve.run.heap import keep_freed_memory

__all__ = ["prepare_process"]


def prepare_process(threads: int | None) -> None:
    """Set the threads that torch computes with (None: as they are), and see that waiting for them costs little.

    Results depend on the number of threads, and on nothing else here: see `oncurve.processors`, `oncurve.run.heap`.
    """
    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    processors.watch(torch.get_num_threads())
