"""LoRA at rank 16, beside full fine-tuning and beside TRL with PEFT: seconds per step and peak memory.

    python -m bench.single.lora [--models 6.5M,494M] [--steps 3] [--others oncurve,trl-lora] [--threads 2] [--out FILE]

The work is that of the "fixed" cells of the main table, β = 0.04: the reference is the model without its adapter, in
full fine-tuning a copy. Both systems of a pair take turns, A B B A, each in a process of its own. TRL needs the
benchmark's environment (`make bench`). On a busy machine the ratio of processor seconds says more than that of seconds;
with one thread no thread waits for another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import machine
from bench.cases import CELLS, SYSTEMS
from bench.compare.cells import Turns, side_by_side
from bench.report.tables import markdown
from bench.timing import ratio_interval

__all__ = ["GOALS", "OTHERS", "main", "pair", "table"]

OTHERS = ("oncurve", "trl-lora", "trl-lora-autocast")
GOALS = {"oncurve": (1 / 0.8, 0.45), "trl-lora": (3.0, 0.6), "trl-lora-autocast": (3.0, 0.6)}
"""At 494M, by system: how many times as long its step is at least, and the most of its memory that LoRA takes."""


def pair(model: str, other: str, steps: int, threads: int = 2) -> dict[str, Any]:
    """oncurve's LoRA and another system at the same work: seconds, peaks, and their ratios."""
    case = replace(CELLS[f"{model} fixed"], threads=threads)
    turns, order = side_by_side(case.under("oncurve-lora"), case.under(other), steps, None)
    ours, theirs = turns
    return {
        "order": order,
        "systems": {turn.system: _figures(turn) for turn in turns},
        "threads": threads,
        "ratio": ratio_interval(_seconds(theirs), _seconds(ours)),
        "cpu_ratio": ratio_interval(theirs.cpu_seconds, ours.cpu_seconds),
        "memory": ours.peak_bytes / theirs.peak_bytes,
    }


def _seconds(turns: Turns) -> list[float]:
    return [report["seconds"] for report in turns.reports]


def _figures(turns: Turns) -> dict[str, Any]:
    phases = sorted({name for report in turns.reports for name in report["phases"]})
    mean = {p: sum(r["phases"].get(p, 0.0) for r in turns.reports) / len(turns.reports) for p in phases}
    own = {"seconds": _seconds(turns), "cpu_seconds": turns.cpu_seconds}
    return own | {"phases": mean, "peak_bytes": turns.peak_bytes, "about": turns.about}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the pairs by model: the other step over that of oncurve with LoRA (95 % interval), and the memory
    ratio.
    """
    rows = []
    for model, pairs in results.items():
        for other, found in pairs.items():
            own, its = (found["systems"][key] for key in ("oncurve-lora", other))
            faster, memory = (f"{goal:g}" for goal in GOALS[other]) if model == "494M" else ("", "")
            rows.append(
                [
                    model,
                    SYSTEMS[other].label if other != "oncurve" else "oncurve, all weights",
                    f"{_median(its):.2f} s, {its['peak_bytes'] / 1e9:.2f} GB",
                    f"{_median(own):.2f} s, {own['peak_bytes'] / 1e9:.2f} GB",
                    "{:.2f} ({:.2f} to {:.2f})".format(*found["ratio"]),
                    "{:.2f} ({:.2f} to {:.2f})".format(*found["cpu_ratio"]),
                    faster,
                    f"{found['memory']:.2f}",
                    memory,
                ]
            )
    return markdown(
        [
            "model",
            "next to",
            "its step, peak",
            "oncurve with LoRA",
            "times as long",
            "processor seconds",
            "goal",
            "oncurve's memory / its",
            "goal",
        ],
        rows,
    )


def _median(figures: dict[str, Any]) -> float:
    return statistics.median(figures["seconds"])


def main() -> int:
    """Measure the pairs, print the table, write the figures. Pairs of other models stay in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="6.5M,494M")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--others", default=",".join(OTHERS))
    parser.add_argument("--out", type=Path, default=Path("bench/results/lora.json"))
    given = parser.parse_args()
    known = json.loads(given.out.read_text(encoding="utf-8"))["results"] if given.out.is_file() else {}
    for other in given.others.split(","):
        if other not in OTHERS:
            parser.error(f"--others: there is no {other!r}; there are: {', '.join(OTHERS)}")
        if other.startswith("trl") and find_spec("trl") is None:
            print(f"{other}: not measured, trl is not installed", flush=True)
            continue
        for model in given.models.split(","):
            found = pair(model, other, given.steps, given.threads) | {"load": machine.load()}
            known.setdefault(model, {})[other] = found
            print(f"{model}, {other}: {found['ratio'][0]:.2f}x, memory {found['memory']:.2f}", flush=True)
            given.out.write_text(json.dumps({"machine": machine.describe(), "results": known}, indent=1) + "\n")
    print(table(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
