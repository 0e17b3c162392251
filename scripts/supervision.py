"""Outcome and process supervision, and PPO, on the built-in task: steps to a given accuracy. `--help`: options.

The demo's recipes, which differ in the advantage and in what it needs, train the shipped model on the same seeds. They
are judged greedily on held-out problems every few steps; what is compared is the first time that a run reaches a level.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import oncurve

DEMO = Path(oncurve.__file__).parent / "demo"
RECIPES = {"outcome": DEMO / "recipe.toml", "process": DEMO / "process.toml", "ppo": DEMO / "ppo.toml"}
LEVELS = (0.5, 0.8, 0.95)
METRIC = "eval/accuracy"


def curve(kind: str, seed: int, steps: int, every: int) -> dict[int, float]:
    """Held-out accuracy by step of one run, in a process and a folder of its own."""
    words = [f"run.seed={seed}", f"run.steps={steps}", f"eval.every={every}", "checkpoint.every=0"]
    words.append("learner.schedule=constant")  # so that the number of steps changes nothing but where a run ends
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "oncurve", "train", str(RECIPES[kind]), *words, "--out", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    found = (json.loads(line) for line in lines)
    return {int(line["step"]): line[METRIC] for line in found if METRIC in line}


def reached(accuracy: dict[int, float], level: float) -> float:
    """The first judged step at which the level was reached; infinite where it never was."""
    return min((step for step, value in accuracy.items() if value >= level), default=float("inf"))


def interval(values: list[float], draws: int = 10000) -> tuple[float, float]:
    """Of the mean, 95 %, by drawing the seeds again."""
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def main() -> None:
    """Train both on every seed, and print what each level took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps between judgements")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; each takes one thread")
    parser.add_argument("--with", dest="other", default="process", choices=["process", "ppo"], help="beside outcome")
    parser.add_argument("--out", type=Path, help="also write the curves as JSON")
    arguments = parser.parse_args()
    curves: dict[str, list[dict[int, float]]] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for kind in ("outcome", arguments.other):
            run = partial(curve, kind, steps=arguments.steps, every=arguments.every)
            curves[kind] = []
            for seed, found in enumerate(pool.map(run, range(arguments.seeds))):
                curves[kind].append(found)
                took = ", ".join(f"{level:.0%} at {reached(found, level):g}" for level in LEVELS)
                print(f"{kind:8} seed {seed}: {took}; at the end {found[max(found)]:.1%}", flush=True)
    name = arguments.other
    print(f"\n| accuracy | outcome: steps | {name}: steps | {name} - outcome (95 % interval, paired) |")
    print("|---|---|---|---|")
    for level in LEVELS:
        outcome, other = ([reached(found, level) for found in curves[kind]] for kind in curves)
        difference = [after - before for before, after in zip(outcome, other, strict=True)]
        low, high = interval(difference)
        print(
            f"| {level:.0%} | {statistics.fmean(outcome):.1f} | {statistics.fmean(other):.1f} | "
            f"{statistics.fmean(difference):+.1f} ({low:+.1f} to {high:+.1f}) |"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    main()
