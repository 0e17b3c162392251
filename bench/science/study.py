"""What the studies share: runs of the built-in task by method, size and seed, kept in a file, and their table."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

__all__ = ["STEPS", "Settings", "Study", "interval", "main"]

STEPS = 24

Settings = dict[str, dict[str, Any]]

SETTINGS: Settings = {
    "run": {"threads": 1},
    "model": {"dtype": "float32"},
    "data": {"prompts_per_step": 8},
    "rollout": {"group_size": 8, "max_new_tokens": 72},
    "kl": {"coef": 0.0},
    "learner": {"learning_rate": 5e-4},
    "checkpoint": {"every": 0},
    "eval": {"every": STEPS, "limit": 128},
}


@dataclass(frozen=True)
class Study:
    """Runs of the recipe `task` that differ by method, size and seed alone. The result of a run is the held-out greedy
    accuracy at its end."""

    name: str
    """Of its results file, of its part of the page and of its picture."""

    sizes: Sequence[float]
    """What is varied, from 0, where all methods are the same run, bit for bit: it is made once per seed, as the first
    method's."""

    symbol: str
    """What stands over the sizes in the table."""

    axis: str
    """What the picture says of them."""

    methods: dict[str, Settings]
    """By their names: what each sets."""

    of_size: Callable[[float], Settings]
    """What a size sets."""

    kept: Sequence[str]
    """The metrics of every step that the results have."""

    columns: dict[str, Callable[[list[dict[str, Any]]], str]] = field(default_factory=dict)
    """Further columns of the table, by their heads: from the runs of a size."""

    legend: str = "correction"
    """What the picture says over the methods."""

    @property
    def results(self) -> Path:
        """The file of its results."""
        return Path(__file__).parents[1] / "results" / f"{self.name}.json"

    def read(self) -> dict[str, Any]:
        """The committed results."""
        read: dict[str, Any] = json.loads(self.results.read_text(encoding="utf-8"))
        return read

    def settings_of(self, method: str, size: float) -> Settings:
        """The settings of a run, over those of the recipe `task`."""
        return merged(SETTINGS, self.methods[method] if size else {}, self.of_size(size))

    def jobs(self, seeds: int, methods: Sequence[str] = ()) -> Iterable[tuple[str, float, int]]:
        """Method, size and seed of every run, seed by seed."""
        first = next(iter(self.methods))
        for seed in range(seeds):
            for size in self.sizes:
                yield from ((method, size, seed) for method in ((methods or self.methods) if size else [first]))

    def one(self, method: str, size: float, seed: int, steps: int = STEPS) -> dict[str, Any]:
        """Train once; the kept metrics of every step."""
        import oncurve

        settings = merged(self.settings_of(method, size), {"eval": {"every": steps}})
        with oncurve.train("task", steps=steps, seed=seed, settings=settings) as run:
            curves = {key: [round(step[key], 6) for step in run.metrics if key in step] for key in self.kept}
        return {"method": method, "size": size, "seed": seed, "curves": {k: c for k, c in curves.items() if c}}

    def accuracies(self, results: dict[str, Any], method: str, size: float) -> list[float]:
        """The last accuracy of every seed, in their order; at size 0 those of the first method are everyone's."""
        wanted = method if size else next(iter(self.methods))
        runs = [run for run in results["runs"] if (run["method"], run["size"]) == (wanted, size)]
        return [run["curves"]["eval/accuracy"][-1] for run in sorted(runs, key=lambda run: run["seed"])]

    def table(self, results: dict[str, Any]) -> str:
        """Accuracy at the end by size and method: the mean over seeds and its 95 % interval."""
        methods = [method for method in self.methods if any(run["method"] == method for run in results["runs"])]
        heads = [self.symbol, *self.columns, *methods]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for size in sorted({run["size"] for run in results["runs"]}):
            runs = [run for run in results["runs"] if run["size"] == size]
            cells = [f"{size:g}", *(column(runs) for column in self.columns.values())]
            for method in methods:
                found = self.accuracies(results, method, size)
                cells.append("{:.3f} ± {:.3f}".format(*interval(found)) if found else "")
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def merged(*parts: Settings) -> Settings:
    """One group of settings over the other, key by key."""
    found: Settings = {}
    for part in parts:
        for group, keys in part.items():
            found[group] = {**found.get(group, {}), **keys}
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t; infinite for one value."""
    quantile = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return mean, math.inf
    return mean, quantile.get(count, 1.96) * statistics.stdev(values) / math.sqrt(count)


def main(study: Study, one: Callable[[str, float, int], dict[str, Any]], about: str | None) -> None:
    """Make the runs that are not in the results yet, and print the table. `one`: the study's, by a name that other
    processes can import."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--methods", nargs="+", choices=list(study.methods), default=list(study.methods))
    parser.add_argument("--out", type=Path, default=study.results)
    given = parser.parse_args()
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"runs": []}
    results = {"steps": STEPS, "settings": SETTINGS, "methods": study.methods, "runs": known["runs"]}
    done = {(run["method"], run["size"], run["seed"]) for run in results["runs"]}
    todo = [job for job in study.jobs(given.seeds, given.methods) if job not in done]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(one, *job) for job in todo]):
            results["runs"].append(finished.result())
            results["runs"].sort(key=lambda run: (run["size"], run["method"], run["seed"]))
            given.out.write_text(json.dumps(results) + "\n", encoding="utf-8")
            print(f"{len(results['runs'])} runs", flush=True)
    print(study.table(results))
