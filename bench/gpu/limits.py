"""The card and its limits: products, copies, launches, and the two operations that decoding is made of."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.gpu.day import Place
from bench.machine import describe


def seconds_of(device: torch.device, call: Callable[[], Any], times: int = 10) -> float:
    """Return the seconds of one call, the fastest of several."""
    call()
    return min(timed(device, call)[0] for _ in range(times))


def timed(device: torch.device, call: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds of one call, waiting for the device before and after; and its result."""
    finish(device)
    started = time.perf_counter()
    result = call()
    finish(device)
    return time.perf_counter() - started, result


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(place: Place) -> None:
    """Note the card, the software, and the rates of a bf16 product and of a copy."""
    device = place.device
    place.note("software", describe())
    if not place.toy:
        card = torch.cuda.get_device_properties(device)
        place.note("card", {"name": card.name, "bytes": card.total_memory, "processors": card.multi_processor_count})
        asked = [
            "nvidia-smi",
            "--query-gpu=driver_version,clocks.sm,clocks.mem,temperature.gpu",
            "--format=csv,noheader",
        ]
        place.note("driver", subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    place.note("cuda", {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()})
    side, size = (256, 2**20) if place.toy else (8192, 2**32)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    place.note("product, FLOP/s", 2 * side**3 / seconds_of(device, lambda: left @ right))
    one, other = (torch.empty(size, device=device, dtype=torch.uint8) for _ in range(2))
    place.note("copy, bytes/s, read and written", 2 * size / seconds_of(device, lambda: other.copy_(one)))


def floors(place: Place) -> None:
    """Note seconds of dependent kernels in a graph and out of one, and of the matrix products of grouped heads."""
    device, x = place.device, torch.zeros(256, device=place.device)
    for count in (300, 1000):

        def chain(count: int = count) -> None:
            for _ in range(count):
                x.add_(1.0)

        place.note(f"{count} launches, seconds", seconds_of(device, chain))
        if not place.toy:
            graph = torch.cuda.CUDAGraph()
            chain()
            with torch.cuda.graph(graph):
                chain()
            place.note(f"{count} kernels in a graph, seconds", seconds_of(device, graph.replay))
    for rows, keys in ((8, 16),) if place.toy else ((256, 256), (256, 1024), (1024, 1024), (64, 8192)):
        asked = torch.randn(2 * rows, 7, 64, device=device, dtype=torch.bfloat16)
        stored = torch.randn(2 * rows, keys, 64, device=device, dtype=torch.bfloat16)
        each = seconds_of(device, partial(torch.bmm, asked, stored.transpose(1, 2)))
        place.note(f"bmm of 7 queries, {rows} rows, {keys} keys, bytes/s", stored.nbytes / each)
    place.note("processors of the host", os.cpu_count())


MACHINE = {"product, FLOP/s": 7e14, "copy, bytes/s, read and written": 3.0e12}
FLOORS = {
    "300 kernels in a graph, seconds": 6e-4,
    "1000 kernels in a graph, seconds": 2e-3,
    **{
        f"bmm of 7 queries, {rows} rows, {keys} keys, bytes/s": 1.8e12
        for rows, keys in ((256, 256), (256, 1024), (1024, 1024), (64, 8192))
    },
}
"""Estimates from counts of kernels and bytes, made before a card was seen."""
