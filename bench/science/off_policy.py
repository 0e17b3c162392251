"""How far may a sampler be from the learner? Training on the built-in task by a sampler with noise on its logits.

    python -m bench.science.off_policy [--seeds 5] [--jobs 2] [--out bench/results/off_policy.json]
    python -m bench.science.page

Each run trains the shipped tiny model; only the noise's size s, what corrects for it and the seed differ. The result is
the held-out greedy accuracy at the end, of the policy itself: evaluations are not disturbed. Runs that are in the
results file are not repeated. Without noise the engine is exact and all ways to correct are the same run, bit for bit
(`tests/unit/bench/test_science.py`), so that it is made once per seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

__all__ = ["METHODS", "SETTINGS", "interval", "jobs_of", "one", "settings_of", "table"]

RESULTS = Path(__file__).parents[1] / "results" / "off_policy.json"
STEPS = 24
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "truncated": {"correction": {"kind": "truncated"}},
    "masked": {"correction": {"kind": "masked"}},
    "dppo": {"objective": {"kind": "dppo"}},
}

SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"threads": 1},
    "model": {"dtype": "float32"},
    "data": {"prompts_per_step": 8},
    "rollout": {"group_size": 8, "max_new_tokens": 72},
    "kl": {"coef": 0.0},
    "learner": {"learning_rate": 5e-4},
    "checkpoint": {"every": 0},
    "eval": {"every": STEPS, "limit": 128},
}

KEPT = ("reward/mean", "policy/mismatch", "correction/effective_sample_size", "correction/bounded", "eval/accuracy")


def settings_of(method: str, size: float) -> dict[str, dict[str, Any]]:
    """The settings of a run, over those of the recipe `task`."""
    engine = {"kind": "bench.science.disturbed:Disturbed", "size": size}
    return {**SETTINGS, **METHODS[method], "engine": engine}


def one(method: str, size: float, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train once; the kept metrics of every step."""
    import oncurve

    settings = settings_of(method, size)
    settings["eval"] = {**SETTINGS["eval"], "every": steps}
    with oncurve.train("task", steps=steps, seed=seed, settings=settings) as run:
        curves = {key: [round(step[key], 6) for step in run.metrics if key in step] for key in KEPT}
    return {"method": method, "size": size, "seed": seed, "curves": {k: c for k, c in curves.items() if c}}


def jobs_of(seeds: int, methods: list[str]) -> Iterator[tuple[str, float, int]]:
    """Method, size and seed of every run, seed by seed."""
    for seed in range(seeds):
        for size in SIZES:
            yield from ((method, size, seed) for method in (methods if size else ["none"]))


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t; infinite for one value."""
    quantile = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return mean, math.inf
    return mean, quantile.get(count, 1.96) * statistics.stdev(values) / math.sqrt(count)


def accuracies(results: dict[str, Any], method: str, size: float) -> list[float]:
    """The last accuracy of every seed, in their order; without noise those of "none" are everyone's."""
    wanted = method if size else "none"
    runs = [run for run in results["runs"] if (run["method"], run["size"]) == (wanted, size)]
    return [run["curves"]["eval/accuracy"][-1] for run in sorted(runs, key=lambda run: run["seed"])]


def table(results: dict[str, Any]) -> str:
    """Accuracy at the end by size of the noise and method: the mean over seeds and its 95 % interval."""
    methods = [method for method in METHODS if any(run["method"] == method for run in results["runs"])]
    lines = [
        "| s | mean \\|log π - log μ\\|, first step | " + " | ".join(methods) + " |",
        "|---|---|" + "---|" * len(methods),
    ]
    for size in sorted({run["size"] for run in results["runs"]}):
        gaps = [run["curves"]["policy/mismatch"][0] for run in results["runs"] if run["size"] == size]
        cells = []
        for method in methods:
            mean, half = interval(accuracies(results, method, size))
            cells.append(f"{mean:.3f} ± {half:.3f}")
        lines.append(f"| {size:g} | {statistics.fmean(gaps):.2g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"runs": []}
    results = {"steps": STEPS, "settings": SETTINGS, "methods": METHODS, "runs": known["runs"]}
    done = {(run["method"], run["size"], run["seed"]) for run in results["runs"]}
    todo = [job for job in jobs_of(given.seeds, given.methods) if job not in done]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(one, *job) for job in todo]):
            results["runs"].append(finished.result())
            results["runs"].sort(key=lambda run: (run["size"], run["method"], run["seed"]))
            given.out.write_text(json.dumps(results) + "\n", encoding="utf-8")
            print(f"{len(results['runs'])} runs", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
