"""A training step on this processor next to its limit, phase by phase, in processor seconds of one thread.

    python -m bench.single.step ["6.5M fixed"] [--dtype float32] [--steps 4] [--tokens 2048]

The step is that of `make bench`, without another system next to it. The limit (`bench/compare/counting.py`) takes the
speed of products and of memory, which is measured before every step in the same process. Other programs count little in
processor seconds, so this can be measured on a machine that is not free; with one thread, a run's own threads neither.
`--tokens` are those of a pass (`oncurve.batching.ENOUGH`); `peak GB` is the largest resident set of a step
(Linux).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.cases import CELLS
from bench.compare.counting import ideal_seconds, work_of
from bench.compare.roofline import gemm_flops, memory
from bench.models import SIZES
from bench.systems.ours import build_run
from oncurve import batching

__all__ = ["main", "measure"]


def measure(cell: str, dtype: torch.dtype, steps: int) -> dict[str, Any]:
    """Return the median share of the limit that the step and each phase have, and seconds of each phase."""
    name = str(dtype).removeprefix("torch.")
    case = replace(CELLS[cell], threads=1, settings=(("dtype", name),))
    size, taken, shares = SIZES[case.model], defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with build_run(case) as run:
        parts = {
            "rollout": (run.trainer.groups.engine, "generate"),
            "reference": (run.learner, "score"),
            "train": (run.learner, "update"),
            "step": (run.trainer, "step"),
        }
        for phase, (holder, method) in parts.items():
            setattr(holder, method, _timed(getattr(holder, method), taken[phase]))
        run.trainer.step()
        for number in range(1, steps + 1):
            for each in taken.values():
                each.clear()
            speed, read = gemm_flops(size, dtype, time.thread_time), memory(time.thread_time)["read"]
            Path("/proc/self/clear_refs").write_text("5")  # what the limit took is no part of the peak
            run.trainer.step()
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
            shares["peak GB"].append(int(peak[1]) / 1e6 if peak else 0.0)
            ideal = ideal_seconds(size, work_of(case, number), speed, read, dtype.itemsize)
            least = {**vars(ideal), "step": ideal.step, "rollout": ideal.prefill + ideal.decode}
            for phase in parts:
                shares[phase].append(least[phase] / sum(taken[phase]) if taken[phase] else 0.0)
                shares[f"{phase} seconds"].append(sum(taken[phase]))
    found = {key: round(statistics.median(each), 3) for key, each in shares.items()}
    return {"cell": cell, "dtype": name, "tokens": batching.ENOUGH, **found}


def _timed(work: Any, into: list[float]) -> Any:
    def timed(*arguments: Any, **keywords: Any) -> Any:
        started = time.process_time()
        found = work(*arguments, **keywords)
        into.append(time.process_time() - started)
        return found

    return timed


def main() -> int:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cell", nargs="?", default="6.5M fixed", choices=list(CELLS))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=batching.ENOUGH)
    given = parser.parse_args()
    torch.set_num_threads(1)
    batching.ENOUGH = given.tokens
    print(json.dumps(measure(given.cell, getattr(torch, given.dtype), given.steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
