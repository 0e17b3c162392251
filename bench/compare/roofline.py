"""The machine's limits, measured in the run: speed of matrix products at a model's own shapes, and of memory.

`python -m bench.compare.roofline THREADS MODEL` prints one line of JSON, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.models import SIZES, Size

__all__ = ["gemm_flops", "measure", "memory", "shapes"]

ROOT = Path(__file__).parents[2]
TOKENS = 1024
HEAD_TOKENS = 256
BUFFER_BYTES = 1 << 30  # larger than any cache
LEAST_SECONDS = 0.05


def measure(model: str, threads: int) -> dict[str, float]:
    """Return `{"float32": FLOP/s, "bfloat16": FLOP/s, "read": bytes/s, "copy": bytes/s}`, in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "bench.compare.roofline", str(threads), model]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def shapes(size: Size) -> list[tuple[int, int, int]]:
    """Return one layer's matrix products and the head's, as (tokens, inputs, outputs)."""
    h, kv, wide = size.hidden, size.kv_heads * size.head_dim, size.intermediate
    layer = [(h, h), (h, kv), (h, kv), (h, h), (h, wide), (h, wide), (wide, h)]
    return [(TOKENS, k, n) for k, n in layer] + [(HEAD_TOKENS, h, size.vocabulary)]


def main() -> None:
    """Measure in this process."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    size = SIZES[sys.argv[2]]
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    print(json.dumps({**memory(), **{name: gemm_flops(size, dtype) for name, dtype in kinds.items()}}))


def _best(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Return seconds of one call: the fastest of several after the first."""
    call()
    fastest, until = float("inf"), time.perf_counter() + LEAST_SECONDS
    rounds = 0
    while rounds < 3 or time.perf_counter() < until:
        started = clock()
        call()
        fastest, rounds = min(fastest, clock() - started), rounds + 1
    return fastest


def gemm_flops(size: Size, dtype: Any, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return FLOP/s of forward and both backward products over all layers and the head."""
    import torch

    flops = seconds = 0.0
    for index, (tokens, inputs, outputs) in enumerate(shapes(size)):
        x, weight = torch.randn(tokens, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
        grad = torch.randn(tokens, outputs, dtype=dtype)
        is_head = index == len(shapes(size)) - 1
        share = TOKENS / HEAD_TOKENS if is_head else size.layers
        took = sum(_best(call, clock) for call in (lambda: x @ weight.T, lambda: grad.T @ x, lambda: grad @ weight))  # noqa: B023 called at once
        seconds += share * took
        flops += share * 6 * tokens * inputs * outputs
    return flops / seconds


def memory(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return bytes a second, copied and read."""
    import torch

    source = torch.ones(BUFFER_BYTES // 4)
    target = torch.empty_like(source)
    copy = 2 * BUFFER_BYTES / _best(lambda: target.copy_(source), clock)
    return {"copy": copy, "read": BUFFER_BYTES / _best(lambda: source.sum(), clock)}


if __name__ == "__main__":
    main()
