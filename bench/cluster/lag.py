"""The time that a lag saves: `python -m bench.cluster.lag --repeats 3 --out bench/results/cluster_lag.json`.

Runs of the built-in task with one worker, one thread in each process, on two processors: by turns (no lag), and with a
lag of 1. The ways take turns. By turns a step takes the rollout and the update one after the other; with a lag, as long
as the longer of both. `limit` is that ratio, of the seconds by turns. The rate is so low that all ways sample about the
same texts: the mean length of each is in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench import machine

STEPS, WARM = 12, 4

SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"threads": 1},
    "model": {"dtype": "float32"},
    "data": {"prompts_per_step": 8},
    "rollout": {"group_size": 8, "max_new_tokens": 72},
    "kl": {"coef": 0.0},
    "learner": {"learning_rate": 1e-6},
    "correction": {"kind": "truncated"},
    "checkpoint": {"every": 0},
    "eval": {"every": 0},
}

WAYS: dict[str, dict[str, Any]] = {
    "by turns": {"shard_groups": 2},
    "lag 1": {"shard_groups": 2, "lag": 1},
    "by turns, shards of 1": {"shard_groups": 1},
    "lag 1, shards of 1": {"shard_groups": 1, "lag": 1},
}
"""By their names: `[cluster]`."""


def once(way: str, seed: int) -> dict[str, float]:
    """Return one run: the seconds of a step after the first few, of its parts, and the mean length."""
    import oncurve

    cluster = {"kind": "host", "rollout_workers": 1, **WAYS[way]}
    with oncurve.train("task", steps=STEPS, seed=seed, settings={**SETTINGS, "cluster": cluster}) as run:
        lines = run.metrics[WARM:]
    found = {
        key: statistics.median(line[key] for line in lines) for key in ("time/step", "time/rollout", "time/update")
    }
    return found | {"length": statistics.fmean(line["completions/length"] for line in lines)}


def table_of(each: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians over the repeats, the ratio of a step to one by turns of the same shards, and its limit."""
    found = {}
    for way, runs in each.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        shards = WAYS[way]["shard_groups"]
        turns = each[next(name for name, keys in WAYS.items() if keys == {"shard_groups": shards})]
        middle["of by turns"] = statistics.median(
            mine["time/step"] / its["time/step"] for mine, its in zip(runs, turns, strict=True)
        )
        middle["limit"] = statistics.median(
            max(its["time/rollout"], its["time/step"] - its["time/rollout"]) / its["time/step"] for its in turns
        )
        found[way] = middle
    return found


def main() -> None:
    """Measure, and keep it in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results/cluster_lag.json"))
    given = parser.parse_args()
    load = machine.load()
    each: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for repeat in range(given.repeats):
        for way, runs in each.items():
            runs.append(once(way, repeat))
    ways = table_of(each)
    for way, row in ways.items():
        print(f"{way:24}" + ", ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
    about = {"settings": SETTINGS, "machine": machine.describe(), "load before and after": [load, machine.load()]}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"ways": ways, "each": each, **about}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
