"""Measurements of memory and time: resident memory and its peak, seconds, rates of this machine."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from oncurve.forecast.machines import Machine, number_in
from oncurve.forecast.shapes import ModelShape


def tidy() -> None:
    """Free unreferenced memory, and return it to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class MemoryMeter:
    """The memory of this process on the device: `now()`, and `peak()` since `reset()`.

    On the CPU this is the resident set, whose high-water mark Linux can reset. On other systems `exact` is False, and
    `peak()` is the peak of the whole process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.exact = device.type == "cuda" or self.reset()

    def reset(self) -> bool:
        """Reset the peak to the memory held now, and return whether that is possible."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            return True
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            return self._status("VmHWM") <= 1.02 * self._status("VmRSS")
        return False

    def now(self) -> int:
        """Return the bytes held now."""
        if self._device.type == "cuda":
            return int(torch.cuda.memory_allocated())
        import psutil

        return int(psutil.Process().memory_info().rss)

    def peak(self) -> int:
        """Return the most bytes held since `reset`."""
        return int(torch.cuda.max_memory_allocated()) if self._device.type == "cuda" else self._status("VmHWM")

    @staticmethod
    def _status(key: str) -> int:
        return 1024 * int(number_in(Path("/proc/self/status"), f"{key}:") or 0)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, until the device has finished it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure_machine(shape: ModelShape, dtype: torch.dtype, device: torch.device, memory: float) -> Machine:
    """Measure this machine's rates: of a layer's products (forward and both of the backward pass, 512 rows), and of
    reading memory. It takes about 0.3 s."""
    rows, wide, hidden = 512, min(shape.intermediate, 8192), min(shape.hidden, 8192)
    x = torch.ones(rows, hidden, dtype=dtype, device=device)
    weight = torch.full((wide, hidden), 0.01, dtype=dtype, device=device)
    y = x @ weight.T

    def products() -> None:
        x @ weight.T
        y @ weight
        y.T @ x

    flops = 6.0 * rows * hidden * wide / _fastest(products, device, 0.15)
    much = torch.ones(1 << (26 if device.type == "cuda" else 24), device=device)
    bandwidth = 4.0 * much.numel() / _fastest(lambda: much.sum(), device, 0.1)
    return Machine(f"this machine ({device.type})", memory, flops, bandwidth, "measured now")


def _fastest(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the least time of one call, of at least 3 calls and as many as fit into `seconds`."""
    work()
    times = [seconds_of(work, device) for _ in range(3)]
    while sum(times) < seconds and len(times) < 1000:
        times.append(seconds_of(work, device))
    return min(times)
