"""Accuracy after n demonstrations, before and after GRPO. The task is countdown with three numbers."""

from __future__ import annotations

from typing import Any

from bench.science.runs import Experiment, problems, said, train, warm_start

__all__ = ["EXPERIMENT"]

NUMBERS = (0, 50, 200, 600)
STEPS = 40


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [{"demonstrations": number, "seed": seed} for seed in range(seeds) for number in NUMBERS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    model = warm_start(job["demonstrations"], seed=job["seed"])
    return train(model, problems(0, 5000), job["seed"], steps=STEPS, settings={"eval.every": STEPS})


def _page(runs: list[dict[str, Any]]) -> str:
    lines = ["| demonstrations | seeds | before GRPO | after GRPO | gain |", "|--:|--:|--:|--:|--:|"]
    for number in NUMBERS:
        curves = [run["curve"] for run in runs if run["demonstrations"] == number]
        if curves:
            before, after = ([curve[place][1] for curve in curves] for place in (0, -1))
            gain = [last - first for first, last in zip(before, after, strict=True)]
            lines.append(f"| {number} | {len(curves)} | {said(before)} | {said(after)} | {said(gain)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("demonstrations", _jobs, _one, _page)
