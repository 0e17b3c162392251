"""Steps to 80 % with `data.curriculum = "pass_rate"`, and in uniform order, on a task of mixed difficulty.

Its problems are picked by what the policy gets right before GRPO: most of them always, some now and then, the others
never. The order `best` is none of the package's: it draws the problems that are right now and then, and no others,
though all are evaluated.
"""

from __future__ import annotations

import math
import statistics
from functools import cache
from itertools import pairwise
from typing import Any

from bench.science.runs import Experiment, problems, right, said, train, warm_start

__all__ = ["EXPERIMENT", "reached"]

UPDATES = {
    "one per group": (250, 1e-5, {"learner.minibatches": 8, "learner.skip_empty_updates": True}),
    "one per step": (250, 2e-5, {"learner.skip_empty_updates": True}),
}
"""Steps, learning rate and settings of each way to update."""
ORDERS = ("none", "pass_rate", "best")
TARGET = 0.8
SAMPLES = 64
PARTS = ((56, 1.0, 1.0, 1), (14, 0.1, 0.5, 0), (10, 0.0, 0.0, 0))
"""So many problems that are right in this share of the samples, and greedily right (1) or wrong (0)."""


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [
        {"updates": updates, "order": order, "seed": seed}
        for updates in UPDATES
        for order in ORDERS
        for seed in range(seeds)
    ]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    model = warm_start(9600, (2, 2, 2, 3))
    rows, (steps, rate, settings) = _sorted(model), UPDATES[job["updates"]]
    order = "pass_rate" if job["order"] == "pass_rate" else "none"
    settings = {**settings, "data.curriculum": order, "eval.every": 5}
    if job["order"] == "best":
        settings["data.eval_rows"] = [{key: row[key] for key in ("prompt", "numbers", "target")} for row in rows]
        steps, rows = 100, rows[PARTS[0][0] :][: PARTS[1][0]]
    changed = {"steps": steps, "learning_rate": rate, "prompts_per_step": 8, "group_size": 16, "settings": settings}
    return train(model, rows, job["seed"], held_out=False, **changed)


@cache
def _sorted(model: str) -> list[dict[str, Any]]:
    """Return the problems of `PARTS`."""
    rows = list({row["prompt"]: row for row in problems(0, 1600, (2, 3))}.values())
    found = list(zip(rows, _rates(model, rows, SAMPLES, 1.0), _rates(model, rows, 1, 0.0), strict=True))
    return [
        row
        for count, low, high, wanted in PARTS
        for row in [row for row, rate, greedy in found if low <= rate <= high and greedy == wanted][:count]
    ]


def _rates(model: str, rows: list[dict[str, Any]], samples: int, temperature: float) -> list[float]:
    """Return the share of right completions of each problem."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from oncurve.models import LocalWeights, wrap
    from oncurve.rollout import InProcessEngine, Sampling
    from oncurve.types import Prompt

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [Prompt(n, "", tuple(tokenizer(row["prompt"]).input_ids)) for n, row in enumerate(rows)]
    sampling = Sampling(group_size=samples, max_new_tokens=12, temperature=temperature, stop=("\n",))
    engine = InProcessEngine(sampling, tokenizer, (tokenizer.eos_token_id,), seed=0)
    engine.follow(LocalWeights(wrap(AutoModelForCausalLM.from_pretrained(model)), 0))
    return [
        sum(right(each.text, row["numbers"], row["target"]) for each in group.completions) / samples
        for group, row in zip(engine.generate(prompts, draw=0), rows, strict=True)
    ]


def reached(curve: list[list[float]], target: float) -> float:
    """Return the step at which the curve first is at the target, between evaluations by a line; infinite: never."""
    for (before, low), (step, high) in pairwise(curve):
        if high >= target:
            return before + (step - before) * max(0.0, target - low) / (high - low) if high > low else step
    return math.inf


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| updates | order | steps to 80 % (each seed) | mean | over uniform order | constant groups |",
        "|---|---|---|--:|--:|--:|",
    ]
    for updates in UPDATES:
        by = {order: [run for run in runs if (run["updates"], run["order"]) == (updates, order)] for order in ORDERS}
        steps = {order: [reached(run["curve"], TARGET) for run in found] for order, found in by.items()}
        for order, found in by.items():
            if found:
                listed = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in steps[order])
                ratios = [one / other for one, other in zip(steps[order], steps["none"], strict=False)]
                never = math.isinf(sum(steps[order] + steps["none"]))
                shown = "- | -" if never else f"{statistics.fmean(steps[order]):.0f} | {said(ratios)}"
                constant = said([run["constant"] for run in found])
                lines.append(f"| {updates} | `{order}` | {listed} | {shown} | {constant} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("curriculum", _jobs, _one, _page)
