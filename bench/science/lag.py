"""What does a lag cost in learning? Training on the built-in task with rollouts of earlier weights.

    python -m bench.science.lag [--seeds 5] [--jobs 2] [--out bench/results/lag.json]
    python -m bench.science.page

Each run trains the shipped tiny model; only `cluster.lag`, what is done about it and the seed differ. The result is the
held-out greedy accuracy at the end. Runs that are in the results file are not repeated. Without a lag all are the same
run; it is made once per seed. The runs have no workers, whose number changes no bit.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.science import study

__all__ = ["STUDY", "one"]


def _mean_lag(runs: list[dict[str, Any]]) -> str:
    means = [statistics.fmean(run["curves"].get("cluster/lag_mean", [0.0])) for run in runs if run["method"] == "none"]
    return f"{statistics.fmean(means):.2g}" if means else "0"


STUDY = study.Study(
    name="lag",
    sizes=(0.0, 1.0, 2.0, 4.0, 8.0),
    symbol="lag",
    axis="cluster.lag",
    methods={"none": {}, "truncated": {"correction": {"kind": "truncated"}}},
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
    columns={"mean lag": _mean_lag},
)


def one(method: str, size: float, seed: int) -> dict[str, Any]:
    """`Study.one` of this study."""
    return STUDY.one(method, size, seed)


if __name__ == "__main__":
    study.main(STUDY, one, __doc__)
