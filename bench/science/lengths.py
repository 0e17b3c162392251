"""Lengths of wrong answers where each is divided by its own length, and by Dr. GRPO's constant."""

from __future__ import annotations

import statistics
from typing import Any

from bench.science.runs import Experiment, problems, right, said, train, warm_start

__all__ = ["EXPERIMENT"]

KINDS = {"seq-mean-token-mean": 3e-4, "seq-mean-token-sum-norm": 3e-4}
STEPS, PROMPTS, GROUP = 40, 16, 8
QUARTER = STEPS // 4 * PROMPTS * GROUP


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [{"aggregation": kind, "seed": seed} for seed in range(seeds) for kind in KINDS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    wrong: list[int] = []

    def reward(completion: str, numbers: list[int], target: int) -> float:
        found = right(completion, numbers, target)
        wrong.append(0 if found else len(completion))
        return found

    settings = {
        "aggregation.kind": job["aggregation"],
        "advantage.scale": "none",
        "eval.every": STEPS,
        "eval.at_start": False,
    }
    settings["rollout.temperature"] = 1.3  # completions of several lengths
    made = train(
        warm_start(200),
        problems(0, 5000),
        job["seed"],
        steps=STEPS,
        max_new_tokens=32,
        reward=reward,
        settings=settings,
    )
    sampled = wrong[: STEPS * PROMPTS * GROUP]
    first, last = ([n for n in part if n] for part in (sampled[:QUARTER], sampled[-QUARTER:]))
    return made | {"first": statistics.fmean(first), "last": statistics.fmean(last)}


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| aggregation | seeds | wrong answers, first quarter | last quarter | change | accuracy at the end |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        found = [run for run in runs if run["aggregation"] == kind]
        if found:
            first, last = ([run[key] for run in found] for key in ("first", "last"))
            change = [after - before for before, after in zip(first, last, strict=True)]
            ends = said([run["curve"][-1][1] for run in found])
            lines.append(f"| `{kind}` | {len(found)} | {said(first)} | {said(last)} | {said(change)} | {ends} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("lengths", _jobs, _one, _page)
