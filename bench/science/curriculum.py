"""Steps to 80 % with `data.curriculum = "pass_rate"`, and in uniform order, on two tasks.

The problems of "two or three numbers" are as they come. Those of "sorted" are picked by what the policy gets right
before GRPO: most of them always, some now and then, the others never.

Two orders are none of the package's. `last group`: pass rates are of a prompt's newest group alone. `best`: of "sorted"
the problems that are right now and then are drawn, and no others, though all are evaluated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from bench.science.runs import Experiment, problems, right, said, train, warm_start
from oncurve.data import Counts, counted
from oncurve.trainer.groups import collecting
from oncurve.types import Group, Score

__all__ = ["EXPERIMENT", "reached"]

TASKS = ("sorted, an update per group", "sorted", "two or three numbers")
ORDERS = dict.fromkeys(TASKS, ("none", "pass_rate", "last group")) | {TASKS[0]: ("none", "pass_rate", "best")}
TARGET = 0.8
SAMPLES = 32
PARTS = ((44, 0.9, 1.0, 1), (24, 0.1, 0.5, 0), (12, 0.0, 0.0, 0))
"""Of "sorted": so many problems that are right in this share of the samples, and greedily right (1) or wrong (0)."""


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [
        {"task": task, "order": order, "seed": seed}
        for task in TASKS
        for order in ORDERS[task]
        for seed in range(seeds)
    ]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    order = {"last group": "pass_rate", "best": "none"}.get(job["order"], job["order"])
    steps, settings = 100, dict[str, Any]({"data.curriculum": order, "eval.every": 5})
    if job["task"] == "two or three numbers":
        model = warm_start(600, (2, 2, 2, 2, 2, 2, 3))
        rows, prompts, rate = problems(0, 160, (2, 3, 2, 3, 2)), 16, 5e-4
        settings["eval.every"] = 10
    else:
        model = warm_start(2400, (2, 2, 2, 3))
        rows, prompts, rate = _sorted(model), 8, 1e-4
    if job["task"] == TASKS[0]:
        steps, rate = 200, 2e-5
        settings |= {"learner.minibatches": prompts, "learner.skip_empty_updates": True}
    if job["order"] == "best":
        settings["data.eval_rows"] = [{key: row[key] for key in ("prompt", "numbers", "target")} for row in rows]
        steps, rows = 100, rows[PARTS[0][0] :][: PARTS[1][0]]
    changed = {"steps": steps, "prompts_per_step": prompts, "learning_rate": rate, "settings": settings}
    with patch.object(collecting, "counted", _newest if job["order"] == "last group" else counted):
        return train(model, rows, job["seed"], held_out=False, **changed)


def _sorted(model: str) -> list[dict[str, Any]]:
    """Return the problems of `PARTS`."""
    rows = list({row["prompt"]: row for row in problems(0, 800, (2, 3))}.values())
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
        "| task | order | steps to 80 % (each seed) | mean | over uniform order | constant groups | accuracy at 100 |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for task in TASKS:
        by = {order: [run for run in runs if (run["task"], run["order"]) == (task, order)] for order in ORDERS[task]}
        steps = {order: [reached(run["curve"], TARGET) for run in found] for order, found in by.items()}
        for order, found in by.items():
            if found:
                listed = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in steps[order])
                ratios = [one / other for one, other in zip(steps[order], steps["none"], strict=False)]
                never = math.isinf(sum(steps[order] + steps["none"]))
                shown = "- | -" if never else f"{statistics.fmean(steps[order]):.0f} | {said(ratios)}"
                constant = said([run["constant"] for run in found])
                accuracy = said([dict(map(tuple, run["curve"]))[100] for run in found])
                lines.append(f"| {task} | `{order}` | {listed} | {shown} | {constant} | {accuracy} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("curriculum", _jobs, _one, _page)
