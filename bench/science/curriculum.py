"""Steps to 80 % with `data.curriculum = "pass_rate"`, and in uniform order.

The order `last group` is a variant that the package does not have: pass rates are of a prompt's newest group alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from bench.science.runs import Experiment, interval, problems, said, train, warm_start
from oncurve.data import Counts, counted
from oncurve.trainer.groups import collecting
from oncurve.types import Group, Score

__all__ = ["EXPERIMENT", "reached"]

ORDERS = ("none", "pass_rate", "last group")
STEPS, PROMPTS, EVERY, TARGET = 100, 16, 10, 0.8
POOL, COUNTS = 160, (2, 3, 2, 3, 2)
SHOWN = (2, 2, 2, 2, 2, 2, 3)


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [{"order": order, "seed": seed} for seed in range(seeds) for order in ORDERS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    order = "pass_rate" if job["order"] == "last group" else job["order"]
    model, rows = warm_start(600, SHOWN), problems(0, POOL, COUNTS)
    settings = {"data.curriculum": order, "eval.every": EVERY}
    changed = {"steps": STEPS, "prompts_per_step": PROMPTS, "learning_rate": 5e-4, "settings": settings}
    with patch.object(collecting, "counted", _newest if job["order"] == "last group" else counted):
        return train(model, rows, job["seed"], held_out=False, **changed)


def _newest(counts: Counts, groups: Sequence[Group], right: Callable[[Score], bool | None]) -> Counts:
    trained = {group.prompt.id for group in groups}
    return counted({number: pair for number, pair in counts.items() if number not in trained}, groups, right)


def reached(curve: list[list[float]], target: float) -> float:
    """Return the step at which the curve first is at the target, between evaluations by a line; infinite: never."""
    for (before, low), (step, high) in pairwise(curve):
        if high >= target:
            return before + (step - before) * max(0.0, target - low) / (high - low) if high > low else step
    return math.inf


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| order | steps to 80 % (each seed) | prompts (mean) | constant groups | accuracy at the end |",
        "|---|---|--:|--:|--:|",
    ]
    by = {order: sorted((r for r in runs if r["order"] == order), key=lambda r: r["seed"]) for order in ORDERS}
    for order, found in by.items():
        if not found:
            continue
        steps = [reached(run["curve"], TARGET) for run in found]
        listed = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in steps)
        ended = [step for step in steps if not math.isinf(step)]
        mean = said([PROMPTS * step for step in ended], ".0f") if len(ended) == len(steps) else "not all reach it"
        constant = said([run["constant"] for run in found])
        lines.append(f"| `{order}` | {listed} | {mean} | {constant} | {said([run['curve'][-1][1] for run in found])} |")
    for order in ORDERS[1:]:
        pairs = [
            (reached(one["curve"], TARGET), reached(other["curve"], TARGET))
            for one, other in zip(by[order], by["none"], strict=False)
        ]
        both = [one / other for one, other in pairs if not math.isinf(one + other)]
        if both:
            mean, half = interval(both)
            all_of = f"{len(both)} of {len(pairs)} seeds"
            lines += ["", f"Steps with `{order}` over those of `none`: {mean:.2f} ± {half:.2f} ({all_of})."]
    return "\n".join(lines)


EXPERIMENT = Experiment("curriculum", _jobs, _one, _page)
