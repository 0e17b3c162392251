"""The learning run: seconds of training until the shipped tiny model reaches a held-out accuracy, ours and TRL's.

Two runs are active at any time, each on one thread, so that each has a busy neighbour. The results list what the two
systems do differently.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.timing import ratio_interval

__all__ = ["plot", "reached", "run", "summary", "table"]

ROOT = Path(__file__).parents[2]
RECIPE = "src/oncurve/demo/recipe.toml"
SYSTEMS = {"oncurve": "oncurve", "trl": "TRL"}
TARGET = 0.9


def run(quick: bool = False, seeds: int = 5, budget_seconds: float = 1800.0) -> dict[str, Any]:
    """Return both systems on every seed; `quick`: one seed and a few steps, to see that everything works.

    A run that has not begun when the budget is used up is left out; the results list it.
    """
    from bench.learning.trl import DIFFERENCES

    size = {"steps": 4, "every": 2, "problems": 64, "target": 0.3} if quick else {"steps": 100, "target": TARGET}
    jobs = [
        {"system": system, "seed": seed, "recipe": RECIPE, **size}
        for seed in range(1 if quick else seeds)
        for system in SYSTEMS
    ]
    until = time.monotonic() + budget_seconds
    with ThreadPoolExecutor(2) as lanes:
        done = list(lanes.map(lambda job: _in_time(job, until), jobs))
    return {
        "target": size["target"],
        "recipe": RECIPE,
        "differences": list(DIFFERENCES),
        "runs": [one for one in done if "left_out" not in one],
        "left_out": [one for one in done if "left_out" in one],
        "summary": summary([one for one in done if "left_out" not in one], float(size["target"])),
    }


def _in_time(job: dict[str, Any], until: float) -> dict[str, Any]:
    if time.monotonic() > until:
        return {"system": job["system"], "seed": job["seed"], "left_out": "the time for this part was used up"}
    return _one(job)


def _one(job: dict[str, Any]) -> dict[str, Any]:
    """Return a run in a fresh process: its curve, one point per evaluation."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.learning.worker", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not lines or "over" not in lines[-1]:
        raise RuntimeError(f"the learning run {job} failed (exit {done.returncode}):\n{done.stderr[-2000:]}")
    about = next(line["about"] for line in lines if "about" in line)
    points = [line for line in lines if "accuracy" in line]
    return {"system": job["system"], "seed": job["seed"], "about": about, "points": points}


def reached(points: list[dict[str, Any]], target: float, clock: str = "seconds") -> float | None:
    """Return when the curve first reaches `target`, by linear interpolation between evaluations; None: never."""
    before: dict[str, Any] | None = None
    for point in points:
        if point["accuracy"] >= target:
            if before is None:
                return float(point[clock])
            share = (target - before["accuracy"]) / (point["accuracy"] - before["accuracy"])
            return float(before[clock] + share * (point[clock] - before[clock]))
        before = point
    return None


def summary(runs: list[dict[str, Any]], target: float) -> dict[str, Any]:
    """By system: seconds and steps to the target and last accuracy, in order of seeds; and the ratio of seconds.

    The ratio TRL / oncurve is of the medians over seeds that reached the target in both, with a bootstrap interval
    over seeds; None where there are none.
    """
    found: dict[str, Any] = {}
    times: dict[str, dict[int, float]] = {}
    for system in SYSTEMS:
        own = sorted((one for one in runs if one["system"] == system), key=lambda one: one["seed"])
        seconds = {one["seed"]: reached(one["points"], target) for one in own}
        times[system] = {seed: value for seed, value in seconds.items() if value is not None}
        found[system] = {
            "seconds": list(seconds.values()),
            "processor_seconds": [reached(one["points"], target, "processor_seconds") for one in own],
            "steps": [reached(one["points"], target, "step") for one in own],
            "seconds_per_step": [one["points"][-1]["seconds"] / max(1, one["points"][-1]["step"]) for one in own],
            "last_accuracy": [one["points"][-1]["accuracy"] for one in own],
            "best_accuracy": [max(point["accuracy"] for point in one["points"]) for one in own],
        }
    seeds = sorted(times["oncurve"].keys() & times["trl"].keys())
    theirs, ours = ([times[system][seed] for seed in seeds] for system in ("trl", "oncurve"))
    found["ratio"] = ratio_interval(theirs, ours) if seeds else None
    return found


def table(results: dict[str, Any]) -> str:
    """Return the results as a section of the page."""
    found, target = results["summary"], results["target"]
    lines = [
        f"| system | seconds of training to {target:.0%} (each seed) | median | steps (median) | seconds a step | "
        "last accuracy (median) |",
        "|---|---|---|---|---|---|",
    ]
    for system, label in SYSTEMS.items():
        own = found[system]
        cells = [
            ", ".join("never" if s is None else f"{s:.0f}" for s in own["seconds"]),
            _median(own["seconds"], "{:.0f} s"),
            _median(own["steps"], "{:.0f}"),
            _median(own["seconds_per_step"], "{:.2f}"),
            _median(own["last_accuracy"], "{:.1%}"),
        ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    if found["ratio"] is not None:
        value, low, high = found["ratio"]
        lines += ["", f"oncurve is there {value:.1f} times as soon (95 % interval over seeds {low:.1f} to {high:.1f})."]
    if results["left_out"]:
        names = ", ".join(f"{SYSTEMS[one['system']]} seed {one['seed']}" for one in results["left_out"])
        lines += ["", f"Left out because the time was used up: {names}."]
    lines += ["", "What is not the same in both:", "", *(f"* {line}" for line in results["differences"])]
    return "\n".join(lines)


def _median(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if known else "-"


def median_curve(runs: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return seconds and accuracies: the medians over runs at each evaluation that all of them had."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for one in runs:
        for point in one["points"]:
            by_step.setdefault(point["step"], []).append(point)
    whole = [points for _, points in sorted(by_step.items()) if len(points) == len(runs)]
    return (
        [statistics.median(point["seconds"] for point in points) for points in whole],
        [statistics.median(point["accuracy"] for point in points) for points in whole],
    )


def plot(results: dict[str, Any], path: Path) -> None:
    """Accuracy over seconds of training: every seed thin, the medians thick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (system, label), colour in zip(SYSTEMS.items(), ("tab:blue", "tab:orange"), strict=True):
        runs = [one for one in results["runs"] if one["system"] == system]
        for one in runs:
            points = one["points"]
            axes.plot([p["seconds"] for p in points], [p["accuracy"] for p in points], color=colour, lw=0.7, alpha=0.5)
        axes.plot(*median_curve(runs), color=colour, lw=2.5, label=f"{label} ({len(runs)} seeds)")
    axes.axhline(results["target"], color="grey", lw=0.8, ls="--")
    axes.set(xlabel="seconds of training, evaluation left out", ylabel="greedy accuracy on held-out problems")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
