"""The driver's own work: `python -m bench.cluster.driver 38M --repeats 5 --out bench/results/cluster_driver.json`.

One process trains, two workers with one thread each sample for it, in turns (no lag). While they sample, the process
that trains decodes nothing: what it computes then is the cluster's own work. That is the digest and the copy of the
weights, pickling of shards, unpickling of groups, and the watching of processes, in processor seconds of all threads of
that process. `own_share` is their share of the step by the clock, and `own_share_of_processor` that of the process's
processor seconds: an upper limit that another load of the machine does not change. `weights_seconds` is the time for
which workers have to wait: the digest and the copy of the weights. The model has random weights; the other sizes are
those of `bench.cluster.workers`, with one update of the 8 prompts in 8 gradient shards per step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from bench import machine
from bench.cluster.workers import GROUP_SIZE, SAMPLING, build, prompts_of, random_model
from bench.models import SIZES
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import FleetEngine, HostCluster
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.types import Group, Score


def steps(size: str, repeats: int) -> list[dict[str, float]]:
    """Seconds of each step after the first, and of its parts."""
    model, prompts = random_model(size), prompts_of()
    cluster = HostCluster(rollout_workers=2, shard_groups=2)
    config = LearnerConfig(masters="split", moments="bfloat16")
    learner = cluster.learner(
        lambda: config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.0), 0.0), dtype=torch.bfloat16)
    )
    engine = cluster.rollout_engine(build(), build, SAMPLING)
    assert isinstance(engine, FleetEngine)
    found = []
    try:
        for step in range(repeats + 1):
            began, used = time.perf_counter(), time.process_time()
            engine.follow(learner.weights())
            groups = engine.generate(prompts, step)
            sampled, own = time.perf_counter() - began, time.process_time() - used
            batch = collate([Group(each.prompt, each.completions, scores(), draw=step) for each in groups])
            batch = batch.with_advantages(GroupAdvantage()(batch))
            learner.update(batch.with_weights(TokenMean()(batch)))
            whole, processor = time.perf_counter() - began, time.process_time() - used
            took = {
                "step_seconds": whole,
                "rollout_seconds": sampled,
                "own_processor_seconds": own,
                "own_share": own / whole,
                "own_share_of_processor": own / processor,
                "weights_seconds": engine.measured()["cluster/weights_seconds"],
            }
            print(f"  step {step}: " + ", ".join(f"{value:.3f} {key}" for key, value in took.items()), flush=True)
            if step:
                found.append(took)
    finally:
        engine.close()
    return found


def scores() -> tuple[Score, ...]:
    """Rewards that differ within a group."""
    return tuple(Score(float(row % 2)) for row in range(GROUP_SIZE))


def main() -> None:
    """Measure, and keep it in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench/results/cluster_driver.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = machine.load()
    each = steps(given.size, given.repeats)
    median = {key: statistics.median(one[key] for one in each) for key in each[0]}
    about = {"machine": machine.describe(), "load before and after": [load, machine.load()]}
    table = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    table[given.size] = {"median": median, "each": each, **about}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
