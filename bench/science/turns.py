"""Credit for each turn, and one advantage for the whole episode, on the recipe guess."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.science.runs import Experiment, said

__all__ = ["EXPERIMENT"]

KINDS = ("process", "grpo")
STEPS = 24


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [{"advantage": kind, "seed": seed} for seed in range(seeds) for kind in KINDS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    import oncurve

    settings = {"advantage.kind": job["advantage"], "run.threads": 1, "checkpoint.every": 0, "eval.every": STEPS}
    out = Path(tempfile.mkdtemp(prefix="oncurve-science-")) / "run"
    with oncurve.train("guess", steps=STEPS, seed=job["seed"], prompts_per_step=16, settings=settings, out=out) as run:
        return {"before": run.run.before["eval/accuracy"], "after": run.metrics[-1]["eval/accuracy"]}


def _page(runs: list[dict[str, Any]]) -> str:
    lines = ["| advantage | seeds | numbers found before | after | gain |", "|---|--:|--:|--:|--:|"]
    for kind in KINDS:
        found = [run for run in runs if run["advantage"] == kind]
        if found:
            before, after = ([run[key] for run in found] for key in ("before", "after"))
            gain = [last - first for first, last in zip(before, after, strict=True)]
            lines.append(f"| `{kind}` | {len(found)} | {said(before)} | {said(after)} | {said(gain)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("turns", _jobs, _one, _page)
