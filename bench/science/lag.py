"""What does a lag cost in learning, and what does it save in time? The built-in task with `cluster.lag` 0, 1 and 2.

    python -m bench.science.lag [--steps 24] [--lags 0 1 2] [--workers 2] [--out bench/results/lag.json]

Only the lag and the correction differ. `accuracy` is the held-out greedy accuracy at the end. Of the seconds of the
steps, `rollout` is the time for which groups were sampled and `waited` that for which a step waited for them: without a
lag these are the same, and with one the difference passed while steps trained.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.science.off_policy import SETTINGS

RESULTS = Path(__file__).parents[1] / "results" / "lag.json"


def one(lag: int, correction: str, workers: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """Train once; the accuracy, the mean reward of the last quarter, and the sums of seconds after the first step."""
    import oncurve

    cluster = {"kind": "host", "lag": lag, "rollout_workers": workers, "shard_groups": 2}
    settings = {**SETTINGS, "cluster": cluster, "correction": {"kind": correction}}
    settings["eval"] = {**SETTINGS["eval"], "every": steps}
    with oncurve.train("task", steps=steps, seed=seed, settings=settings) as run:
        lines = list(run.metrics)
    last = [line["reward/mean"] for line in lines[-(steps // 4) :]]
    seconds = {
        name: round(sum(line.get(key, 0.0) for line in lines[1:]), 2)
        for name, key in {
            "step": "time/step",
            "rollout": "time/rollout",
            "update": "time/update",
            "waited": "cluster/wait_rollout_seconds",
        }.items()
    }
    return {
        "lag": lag,
        "correction": correction,
        "workers": workers,
        "steps": steps,
        "seed": seed,
        "accuracy": lines[-1]["eval/accuracy"],
        "reward": round(sum(last) / len(last), 4),
        "seconds": seconds,
    }


def main() -> None:
    """Run what is asked for, print a line each, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    found = []
    for lag in chosen.lags:
        for correction in ("none", "truncated") if lag else ("none",):
            found.append(one(lag, correction, chosen.workers, chosen.steps))
            print(json.dumps(found[-1]), flush=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
