"""How the lean optimizer changes learning: the built-in task, with each of its four combinations, several seeds.

    python -m bench.single.lean_learning [--seeds 3] [--steps 100] [--jobs 1] [--out bench/results/lean_learning.json]

The recipe is the demo's, in bfloat16 (so that a master can be split). For each combination: held-out greedy accuracy
at the end, mean and range over the seeds; steps until it first reaches a level; and the paired difference to float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMBINATIONS = [("float32", "float32"), ("split", "float32"), ("float32", "bfloat16"), ("split", "bfloat16")]
BYTES = {("float32", "float32"): 18, ("split", "float32"): 16, ("float32", "bfloat16"): 14, ("split", "bfloat16"): 12}
RECIPE = Path(__file__).parents[2] / "src" / "oncurve" / "demo" / "recipe.toml"
LEVEL = 0.9


def run_one(masters: str, moments: str, seed: int, steps: int) -> list[tuple[int, float]]:
    """Train once in a process of its own; (step, held-out greedy accuracy) of every evaluation."""
    with tempfile.TemporaryDirectory(prefix="oncurve-lean-") as folder:
        words = [f"learner.masters={masters}", f"learner.moments={moments}", f"run.seed={seed}", f"run.steps={steps}"]
        words += ["model.dtype=bfloat16", "checkpoint.every=0", "--out", f"{folder}/run"]
        done = subprocess.run(
            [sys.executable, "-m", "oncurve", "train", str(RECIPE), *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"oncurve train ended with {done.returncode}:\n{done.stderr[-2000:]}")
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [(int(s["step"]), s["eval/accuracy"]) for s in map(json.loads, lines) if "eval/accuracy" in s]


def summary(curves: dict[str, list[tuple[int, float]]]) -> dict[str, Any]:
    """The figures of one combination from its curves by seed."""
    last = {seed: curve[-1][1] for seed, curve in curves.items()}
    reached = {seed: next((step for step, value in curve if value >= LEVEL), None) for seed, curve in curves.items()}
    return {"curves": curves, "accuracy": last, "steps_to_level": reached}


def table(results: dict[str, dict[str, Any]]) -> str:
    """The table of the documentation."""
    lines = [
        f"| masters, moments | bytes a parameter | accuracy at the end: mean (range) | steps to {LEVEL:.0%} | "
        "difference to float32, mean (range) |",
        "|---|---|---|---|---|",
    ]
    exact = results[" ".join(COMBINATIONS[0])]["accuracy"]
    for masters, moments in COMBINATIONS:
        found = results[f"{masters} {moments}"]
        ends = list(found["accuracy"].values())
        gaps = [value - exact[seed] for seed, value in found["accuracy"].items()]
        steps = ", ".join("not" if step is None else str(step) for step in found["steps_to_level"].values())
        lines.append(
            f"| {masters}, {moments} | {BYTES[masters, moments]} | {statistics.mean(ends):.3f} "
            f"({min(ends):.3f} to {max(ends):.3f}) | {steps} | {statistics.mean(gaps):+.3f} "
            f"({min(gaps):+.3f} to {max(gaps):+.3f}) |"
        )
    return "\n".join(lines)


def main() -> int:
    """Train all combinations, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("bench/results/lean_learning.json"))
    given = parser.parse_args()
    wanted = [(*combination, seed) for seed in range(given.seeds) for combination in COMBINATIONS]
    with ThreadPoolExecutor(given.jobs) as pool:
        curves = list(pool.map(lambda one: run_one(*one, given.steps), wanted))
    by_name: dict[str, dict[str, list[tuple[int, float]]]] = {" ".join(c): {} for c in COMBINATIONS}
    for (masters, moments, seed), curve in zip(wanted, curves, strict=True):
        by_name[f"{masters} {moments}"][str(seed)] = curve
    results = {name: summary(of_seed) for name, of_seed in by_name.items()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"steps": given.steps, "results": results}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(table(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
