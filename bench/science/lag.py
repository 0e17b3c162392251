"""What does a lag cost in learning? Training on the built-in task with rollouts of earlier weights.

    python -m bench.science.lag [--seeds 5] [--jobs 2] [--out bench/results/lag.json]
    python -m bench.science.page

Each run trains the shipped tiny model; only `cluster.lag`, what is done about it and the seed differ. The result is the
held-out greedy accuracy at the end. Runs that are in the results file are not repeated. Without a lag all are the same
run; it is made once per seed. With `order = "exact"` the runs have no workers, whose number changes no bit; the others
have two, and other numbers on another machine.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.science import study

__all__ = ["STUDY", "one"]


def _lag_of(method: str, runs: list[dict[str, Any]]) -> str:
    means = [statistics.fmean(run["curves"].get("cluster/lag_mean", [0.0])) for run in runs if run["method"] == method]
    return f"{statistics.fmean(means):.2g}" if means else "0"


TRUNCATED: study.Settings = {"correction": {"kind": "truncated"}}
WINDOW: study.Settings = {"cluster": {"rollout_workers": 2, "order": "window"}}

STUDY = study.Study(
    name="lag",
    sizes=(0.0, 1.0, 2.0, 4.0, 8.0),
    symbol="lag",
    axis="cluster.lag",
    methods={
        "none": {},
        "truncated": TRUNCATED,
        "window": study.merged(TRUNCATED, WINDOW),
        "partial": study.merged(TRUNCATED, WINDOW, {"cluster": {"partial": True}}),
    },
    of_size=lambda lag: {"cluster": {"kind": "host", "lag": int(lag), "shard_groups": 2}},
    kept=(
        "reward/mean",
        "policy/mismatch",
        "policy/clip_low",
        "policy/clip_high",
        "cluster/lag_mean",
        "correction/effective_sample_size",
        "eval/accuracy",
    ),
    columns={f"mean lag, {method}": lambda runs, method=method: _lag_of(method, runs) for method in ("none", "window")},
    legend="correction, order",
)


def one(method: str, size: float, seed: int) -> dict[str, Any]:
    """`Study.one` of this study."""
    return STUDY.one(method, size, seed)


if __name__ == "__main__":
    study.main(STUDY, one, __doc__)
