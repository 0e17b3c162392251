"""A learning run in oncurve and TRL, at an equal number of steps. Needs TRL."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from bench.science.runs import Experiment, said

__all__ = ["EXPERIMENT"]

SYSTEMS = ("oncurve", "trl")


def _jobs(seeds: int) -> list[dict[str, Any]]:
    if find_spec("trl") is None:
        return []
    return [{"system": system, "seed": seed} for seed in range(2 * seeds) for system in SYSTEMS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    from bench.learning.measure import RECIPE, _one as learned

    found = learned({**job, "recipe": RECIPE, "steps": 20, "every": 20, "problems": 256, "target": math.inf})
    return {"after": found["points"][-1]["accuracy"]}


def _page(runs: list[dict[str, Any]]) -> str:
    lines = ["| system | seeds | accuracy after 20 steps |", "|---|--:|--:|"]
    for system in SYSTEMS:
        after = [run["after"] for run in runs if run["system"] == system]
        lines.append(f"| {system} | {len(after)} | {said(after)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("peers", _jobs, _one, _page)
