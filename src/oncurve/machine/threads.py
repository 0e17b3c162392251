"""Preparing the process for computing: its heap, its threads, its GPUs, and the watch over the processors."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

import torch

from oncurve.machine import contention

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def prepare_process(threads: int | None) -> None:
    """Set the number of torch's threads (None: unchanged), and keep waiting for memory and for threads short.

    Results depend on the number of threads alone.
    """
    begin_process(threads)
    contention.watch(torch.get_num_threads())


def begin_process(threads: int | None) -> None:
    """Prepare a process as `prepare_process` does, without a watch: a run's own process has it."""
    keep_freed_memory()
    sum_exactly_on_gpus()
    if threads is not None:
        torch.set_num_threads(threads)


def sum_exactly_on_gpus() -> None:
    """Let the products of a GPU add in float32 throughout.

    By default a long sum of bfloat16 products may be cut into pieces, whose sums are rounded to bfloat16. Where it is
    cut depends on the shape, so sampler and learner would differ by that.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory, and take pieces below 32 MiB from its heap. Returns whether it does.

    By default glibc returns large pieces at once, and every step faults the same pages in again, 4 KiB each: measured
    37,000 page faults per update and 7 % of its time at 6.5M parameters. Left alone: environments with allocator
    settings or another allocator, and other C libraries.
    """
    return _set_heap((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))


def return_freed_memory() -> bool:
    """Let glibc return freed pieces of 1 MiB and more at once, where memory counts more than time: the inverse.

    Layers that are gathered, used and freed one after another would otherwise leave a heap full of holes.
    """
    return _set_heap((_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 1 << 20), (_M_TOP_PAD, 1 << 17))


def _set_heap(*settings: tuple[int, int]) -> bool:
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        done = [mallopt(name, value) for name, value in settings]
        return all(done)
    return False


@contextlib.contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """Within: this process computes with `count` of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
