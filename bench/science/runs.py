"""Problems of the recipe countdown, warm starts, short runs, intervals over seeds: all experiments use them."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine

__all__ = ["TINY", "Experiment", "interval", "measured", "problems", "right", "said", "train", "warm_start"]

SOURCE = Path(__file__).parents[2] / "src" / "oncurve"
TINY = SOURCE / "models" / "tiny"
QUANTILES = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Of Student's t at 97.5 %, by degrees of freedom."""

COMMON = {
    "run.threads": 1,
    "model.dtype": "float32",
    "checkpoint.every": 0,
    "kl.coef": 0.0,
    "rollout.stop": ["\n"],
}


@dataclass(frozen=True)
class Experiment:
    """A question: `jobs(seeds)` are runs, `one` makes one of them in a process of its own, `page` writes the answer."""

    name: str
    jobs: Callable[[int], list[dict[str, Any]]]
    one: Callable[[dict[str, Any]], dict[str, Any]]
    page: Callable[[list[dict[str, Any]]], str]


def measured(one: Callable[[dict[str, Any]], dict[str, Any]], job: dict[str, Any]) -> dict[str, Any]:
    """Return the run of a job, with its seconds and the machine's load."""
    begun = time.monotonic()
    found = one(job)
    return {**job, **found, "seconds": round(time.monotonic() - begun, 1), "load": machine.load()[0]}


def game(count: int) -> Any:
    """Return the recipe's generator of problems with so many numbers."""
    from oncurve.base.imports import locate

    return locate(f"{SOURCE / 'recipes' / 'environments' / 'countdown.py'}:Countdown")(count)


def problems(first: int, number: int, counts: Sequence[int] = (3,)) -> list[dict[str, Any]]:
    """Return problems as rows; problem i has `counts[i % len(counts)]` numbers."""
    games, rows = {count: game(count) for count in counts}, []
    for seed in range(first, first + number):
        made = games[counts[seed % len(counts)]]
        prompt, _ = made.reset(seed)
        row = {"prompt": prompt, "numbers": made.numbers, "target": made.target}
        rows.append({**row, "completion": made.solution + "\n"})
    return rows


def right(completion: str, numbers: list[int], target: int) -> float:
    """Return 1 for a right expression."""
    made = game(len(numbers))
    made.numbers, made.target = numbers, target
    return float(made.right(completion.strip()))


def warm_start(number: int, counts: tuple[int, ...] = (3,), seed: int = 0) -> str:
    """Return the folder of the tiny model after so many solved problems, which is kept among the temporary files."""
    import oncurve

    if not number:
        return str(TINY)
    counts_said = "".join(map(str, counts))
    home = Path(tempfile.gettempdir()) / f"oncurve-science-{number}-{counts_said}-{seed}"
    if not home.is_dir():
        out = Path(tempfile.mkdtemp(prefix="oncurve-science-")) / "warm"
        rows = problems(10**6 + 10**4 * seed, number, counts)
        data = [{key: row[key] for key in ("prompt", "completion")} for row in rows]
        settings = {"run.threads": 1, "model.dtype": "float32", "checkpoint.every": 0, "eval.every": 0}
        known = {"epochs": 5, "batch_size": 16, "learning_rate": 1e-3, "seed": seed, "settings": settings}
        oncurve.sft(model=TINY, data=data, out=out, **known)
        with suppress(OSError):  # another run was first
            out.rename(home)
    return str(home / "model")


def train(model: str, rows: list[dict[str, Any]], seed: int, held_out: bool = True, **changed: Any) -> dict[str, Any]:
    """Train on problems; return the curve of steps and greedy accuracies, and the mean share of constant groups.

    The accuracies are of 200 problems that are held out, or else of the problems that are trained.
    """
    import oncurve

    reward = changed.pop("reward", right)
    rows = [{key: row[key] for key in ("prompt", "numbers", "target")} for row in rows]
    evaluated = {"data.eval_fraction": 200 / len(rows)} if held_out else {"data.eval_rows": rows}
    settings = {**COMMON, **evaluated, **changed.pop("settings", {})}
    known = {
        "steps": 40,
        "group_size": 8,
        "prompts_per_step": 16,
        "max_new_tokens": 12,
        "learning_rate": 3e-4,
        **changed,
    }
    begun = time.process_time()
    with oncurve.train(model=model, data=rows, reward=reward, seed=seed, settings=settings, **known) as run:
        found = [step for step in run.metrics if "eval/accuracy" in step]
        curve = [[int(step["step"]), round(step["eval/accuracy"], 4)] for step in found]
        if run.run.before:
            curve = [[0, round(run.run.before["eval/accuracy"], 4)], *curve]
        constant = round(statistics.fmean(step["groups/constant"] for step in run.metrics), 4)
    return {"curve": curve, "constant": constant, "processor_seconds": round(time.process_time() - begun, 1)}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval by Student's t; infinite for one value."""
    if len(values) < 2:
        return values[0], math.inf
    half = QUANTILES.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def said(values: Sequence[float], form: str = ".2f") -> str:
    """Return "mean ± half of the interval"."""
    mean, half = interval(values)
    return f"{mean:{form}} ± {half:{form}}"
