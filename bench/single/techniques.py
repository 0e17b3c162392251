"""`python -m bench.single.techniques head|gradients|memory`: the effect of single techniques of docs/performance.md.

    head        the fused head's forward and backward, by block of the vocabulary and numbers per elementwise operation
    gradients   training steps of the 494M cell with gradients that stay between updates, and with gradients that
                each update allocates, each in a process of its own: seconds and page faults of an update, peak memory
    memory      of the growth curve over G: what an update adds to the resident set, and how much of it is in use

Two threads, bfloat16, medians. Nothing else may run meanwhile.
"""

from __future__ import annotations

import ctypes
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn

from bench.cases import CELLS
from bench.models import SIZES

__all__ = ["gradients", "head", "memory"]

HEADS = {"494M": 1024, "38M": 4096, "6.5M": 4096}
"""Completion tokens of a micro-batch, by shape."""

STEPS = 5
"""The first two, which make the moments and fill the heap, are not counted."""


def head() -> None:
    """The former settings, and the present ones."""
    from oncurve.models.head import linear_logprobs as fused
    from oncurve.models.head.gradient_buffers import keep_gradient

    here = fused.WORKSPACE_BYTES, fused._AT_ONCE
    for name, tokens in HEADS.items():
        size = SIZES[name]
        weight = nn.Parameter((0.02 * torch.randn(size.vocabulary, size.hidden)).bfloat16())
        keep_gradient(weight, torch.float32)
        hidden = torch.randn(tokens, size.hidden).bfloat16().requires_grad_()
        ids = torch.randint(0, size.vocabulary, (tokens,))
        for block, numbers in ((24 << 20, 1 << 16), here):
            patched = mock.patch.multiple(fused, WORKSPACE_BYTES=block, _AT_ONCE=numbers)
            with patched:
                forward = _median_ms(lambda: fused.linear_logprobs(hidden, weight, ids))  # noqa: B023
                both = _median_ms(lambda: _pass(hidden, weight, ids))  # noqa: B023
            print(
                f"{name}, {tokens} tokens, blocks of {block >> 20} MiB, {numbers:,} numbers at once: "
                f"forward {forward:.0f} ms, with backward {both:.0f} ms",
                flush=True,
            )


def _pass(hidden: Tensor, weight: nn.Parameter, ids: Tensor) -> None:
    from oncurve.models.head.linear_logprobs import linear_logprobs

    weight.grad = hidden.grad = None
    linear_logprobs(hidden, weight, ids)[0].sum().backward()


def gradients() -> None:
    """Both ways, each in a process of its own."""
    for way in ("stay", "allocated"):
        subprocess.run([sys.executable, "-m", "bench.single.techniques", f"_{way}"], check=True)


def _steps(stay: bool) -> None:
    from bench.systems.ours import build_run
    from oncurve.learner.optimizer import masters

    keep = masters.keep_gradient if stay else _allocated
    seconds, faults = [], []
    with mock.patch.object(masters, "keep_gradient", keep), build_run(CELLS["494M fixed"]) as run:
        accumulate = run.learner.accumulate

        def watched(batch: Any) -> Any:
            before, started = _faults(), time.perf_counter()
            accumulated = accumulate(batch)
            seconds.append(time.perf_counter() - started)
            faults.append(_faults() - before)
            return accumulated

        run.learner.accumulate = watched
        for _ in range(STEPS):
            run.trainer.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    pages, middle = statistics.median(faults[2:]), statistics.median(seconds[2:])
    way = "stay" if stay else "are allocated by each update"
    print(f"494M, gradients {way}: an update's passes {middle:.2f} s, {pages:,.0f} page faults; peak {peak:.2f} GB")


def _allocated(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    parameter.grad_dtype = dtype


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def memory() -> None:
    """One process per group size; the last is beyond the curve."""
    for size in (16, 32, 64, 128):
        subprocess.run([sys.executable, "-m", "bench.single.techniques", "_grown", str(size)], check=True)


def _grown(group_size: int) -> None:
    from bench.growth.measure import MEMORY_BASE
    from bench.growth.passes import Ours, Point
    from bench.growth.worker import forget_peak, peak_bytes, resident

    point = Point(**MEMORY_BASE, group_size=group_size)
    trained = Ours(point.vocabulary)
    trained.take(replace(point, prompts=1, group_size=2, prompt_tokens=8, completion=8))
    trained.update()
    trained.take(point)
    forgotten, before, begun = forget_peak(), resident(), _in_use()
    most, over = begun, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.0005):
            most = max(most, _in_use())

    watcher = threading.Thread(target=watch)
    watcher.start()
    trained.update()
    over.set()
    watcher.join()
    added = peak_bytes(forgotten) - before
    print(f"G = {group_size}: an update adds {added / 1e6:.0f} MB, of which {(most - begun) / 1e6:.0f} are in use")


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in names.split()]


def _in_use() -> int:
    """Bytes allocated by malloc and not freed (glibc)."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _MallInfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


def _median_ms(call: Callable[[], object], times: int = 7) -> float:
    """Median milliseconds of a call, after a first one that does not count."""
    call()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


PARTS: dict[str, Callable[[], None]] = {
    "head": head,
    "gradients": gradients,
    "memory": memory,
    "_stay": lambda: _steps(True),
    "_anew": lambda: _steps(False),
    "_grown": lambda: _grown(int(sys.argv[2])),
}

if __name__ == "__main__":
    torch.set_num_threads(2)
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(__doc__)
    PARTS[sys.argv[1]]()
