"""oncurve's group advantages and rlox's compiled function, on the same rewards, in one process.

Their inputs differ. oncurve takes three tensors (rewards, validity, group ids), checks them, allows groups of any sizes
and invalid completions, and returns a float64 tensor. rlox takes a float64 NumPy array and one group size for all,
checks nothing and returns an array. So there are two comparisons:

    core    each function on inputs of its own kind, prepared before
    whole   from a list of Python floats, as rewards arrive, to a tensor of advantages, as a loss needs them

Each number of threads has its own process, because rlox and torch both spread larger batches over threads. Both use
the population standard deviation without eps, rlox's formula, so that values can be compared; two more rows show
oncurve's default (sample standard deviation, eps) and Dr.GRPO's (no division).
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.timing import ratio_interval, time_in_turn

__all__ = ["plot", "run", "table"]

ROOT = Path(__file__).parents[2]
SIZES = ((16, 4), (64, 8), (256, 16), (4096, 16))
VARIANTS = {
    "core": "on ready input",
    "whole": "from a list of floats to a tensor",
}


def run(quick: bool = False) -> dict[str, Any]:
    """Median microseconds of both at every size, the ratio rlox / oncurve with its interval, the largest difference."""
    cores = os.cpu_count() or 1
    return {"by_threads": [_in_process(threads, 20 if quick else 200) for threads in sorted({1, cores})]}


def _in_process(threads: int, repeats: int) -> dict[str, Any]:
    count = str(threads)
    environment = {**os.environ, "OMP_NUM_THREADS": count, "RAYON_NUM_THREADS": count}
    command = [sys.executable, "-m", "bench.compare.group_advantages", count, str(repeats)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"group advantages on {count} threads failed:\n{done.stderr[-2000:]}")
    return {"threads": threads, "rows": json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """All sizes in this process: THREADS REPEATS on the command line, the rows as a line of JSON."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps([_size(groups, size, int(sys.argv[2])) for groups, size in SIZES]))


def _size(groups: int, size: int, repeats: int) -> dict[str, Any]:
    import numpy
    import rlox
    import torch

    from oncurve import group_advantages

    draw = random.Random(groups)
    rewards = [round(draw.random(), 1) for _ in range(groups * size)]
    ids = torch.arange(groups).repeat_interleave(size)
    valid = torch.ones(len(rewards), dtype=torch.bool)
    tensor, array = torch.tensor(rewards, dtype=torch.float64), numpy.array(rewards)

    def ours(values: Any, scale: Any = "group", ddof: int = 0, eps: float = 0.0) -> Any:
        return group_advantages(values, valid, ids, scale, ddof, eps)

    def whole_rlox() -> Any:
        return torch.from_numpy(rlox.compute_batch_group_advantages(numpy.array(rewards), size))

    difference = (ours(tensor) - whole_rlox()).abs().max()
    ways: dict[str, Callable[[], Any]] = {
        "core oncurve": lambda: ours(tensor),
        "core rlox": lambda: rlox.compute_batch_group_advantages(array, size),
        "whole oncurve": lambda: ours(torch.tensor(rewards, dtype=torch.float64)),
        "whole rlox": whole_rlox,
        "default": lambda: ours(tensor, ddof=1, eps=1e-6),
        "dr_grpo": lambda: ours(tensor, scale="none"),
    }
    times = time_in_turn(ways, repeats)
    row: dict[str, Any] = {"groups": groups, "size": size, "largest_difference": float(difference)}
    row["microseconds"] = {name: 1e6 * statistics.median(seconds) for name, seconds in times.items()}
    row["ratio"] = {name: ratio_interval(times[f"{name} rlox"], times[f"{name} oncurve"]) for name in VARIANTS}
    return row


COLUMNS = (
    "groups",
    "rlox, ready input",
    "oncurve, ready input",
    "rlox / oncurve",
    "rlox, from a list",
    "oncurve, from a list",
    "rlox / oncurve",
    "oncurve's default",
    "Dr.GRPO",
    "largest difference",
)


def table(results: dict[str, Any]) -> str:
    """Return the results as a page's section: a row a size, microseconds, and the ratio above 1 where oncurve is
    faster.
    """
    parts = []
    for measured in results["by_threads"]:
        threads = measured["threads"]
        parts += [f"On {threads} thread{'s' if threads > 1 else ''}, median microseconds a call:", ""]
        parts += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", *map(_line, measured["rows"]), ""]
    return "\n".join([*parts, NOTE])


NOTE = (
    "rlox takes a NumPy array and one group size for all, and checks nothing; oncurve takes tensors, checks them, and "
    "has groups of any sizes and invalid completions. Two dozen tensor operations cost oncurve a fixed few dozen "
    "microseconds a step, whatever the batch: below some thousand completions rlox is faster by that, above it "
    "arithmetic decides."
)


def _line(row: dict[str, Any]) -> str:
    micro, cells = row["microseconds"], [f"{row['groups']} x {row['size']}"]
    for name in VARIANTS:
        value, low, high = row["ratio"][name]
        cells += [f"{micro[f'{name} rlox']:.1f}", f"{micro[f'{name} oncurve']:.1f}"]
        cells.append(f"{value:.2f} ({low:.2f} to {high:.2f})")
    cells += [f"{micro['default']:.1f}", f"{micro['dr_grpo']:.1f}", f"{row['largest_difference']:.1e}"]
    return "| " + " | ".join(cells) + " |"


def plot(results: dict[str, Any], path: Path) -> None:
    """Microseconds over the number of completions on one thread, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    rows = results["by_threads"][0]["rows"]
    completions = [row["groups"] * row["size"] for row in rows]
    for system, colour in (("oncurve", "tab:blue"), ("rlox", "tab:orange")):
        for name, style in (("core", "-"), ("whole", "--")):
            micro = [row["microseconds"][f"{name} {system}"] for row in rows]
            axes.plot(completions, micro, style, marker="o", color=colour, label=f"{system}, {VARIANTS[name]}")
    axes.set(xscale="log", yscale="log", xlabel="completions", ylabel="microseconds a call")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
