"""Workers and shards: `python -m bench.cluster.workers PART 38M --repeats 3 --out bench/results/cluster_workers.json`.

    decode     one worker and two, one thread each, in turns: seconds of a rollout, processor seconds
    rollout    shards of 1, 2, 4, ... groups in this process, in turns: processor seconds of a rollout, one thread
    gradient   1, 2, 4, 8, 16 shards of an update of 4 of the prompts in this process, in turns, one thread
    weights    a new version to two workers: seconds until both can sample from it, processor seconds

Processor seconds are those of all processes, and those of the one that had most to do: on a shared machine they say
more than the clock. The model has random weights. Completions have natural lengths (`bench.cases.length`) of at most
32 tokens, 8 of each of 8 prompts of 90 tokens (an update: of 4, of 494M of 2). A bfloat16 model has split masters and
bfloat16 moments. What the file has already of a part, a size and a dtype is measured anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from bench import machine
from bench.cases import Case, length
from bench.models import SIZES
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import HostCluster, Snapshot, Worker
from oncurve.learner import LearnerConfig
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.models import CausalModel, LocalWeights, wrap
from oncurve.processes.fleets.fleet import Replied
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt, Score

PROMPTS, GROUP_SIZE, COMPLETION, PROMPT = 8, 8, 32, 90
START_SECONDS, WAIT_SECONDS = 300.0, 600.0
SAMPLING = Sampling(group_size=GROUP_SIZE, max_new_tokens=COMPLETION)


def random_model(size: str, dtype: torch.dtype = torch.bfloat16) -> CausalModel:
    """Return a Qwen2 model of random weights."""
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(0)
    return wrap(Qwen2ForCausalLM(SIZES[size].config(dtype=dtype)).to(dtype))


def limit(prompt: int, sample: int) -> int:
    """Return the tokens of a completion."""
    return length(Case("oncurve", "38M", PROMPTS, GROUP_SIZE, COMPLETION, lengths="natural"), prompt, sample)


def build() -> InProcessEngine:
    """Return the engine of every process."""
    return InProcessEngine(SAMPLING, seed=0, limits=limit)


def prompts_of(count: int = PROMPTS) -> list[Prompt]:
    """Return prompts of made-up tokens."""
    draw = torch.Generator().manual_seed(1)
    return [
        Prompt(number, "", tuple(torch.randint(8000, (PROMPT,), generator=draw).tolist())) for number in range(count)
    ]


def processor_seconds() -> dict[int, float]:
    """Of this process and of those below it that live, by their ids."""
    here = psutil.Process()
    times = {process.pid: process.cpu_times() for process in (here, *here.children(recursive=True))}
    return {process: found.user + found.system for process, found in times.items()}


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Return seconds, processor seconds of all processes, and of the one that had most to do."""
    began, before = time.perf_counter(), processor_seconds()
    work()
    seconds, after = time.perf_counter() - began, processor_seconds()
    each = [used - before.get(process, 0.0) for process, used in after.items()]
    return {"seconds": seconds, "processor_seconds": sum(each), "busiest_process_seconds": max(each)}


def in_turn(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Return each way `repeats` times after one that does not count, in turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            took = timed(way)
            if repeat:
                found[name].append(took)
            print(f"  {name}: " + ", ".join(f"{value:.2f} {key}" for key, value in took.items()), flush=True)
    medians = {
        name: {key: statistics.median(one[key] for one in each) for key in each[0]} for name, each in found.items()
    }
    return {"median": medians, "each": found}


def decode(size: str, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Return one worker and two."""
    model, prompts = random_model(size, dtype), prompts_of()
    engines = {}
    for count in (1, 2):
        cluster = HostCluster(rollout_workers=count, shard_groups=2)
        engines[str(count)] = cluster.rollout_engine(build(), build, SAMPLING)
        engines[str(count)].follow(LocalWeights(model, 0))
    try:
        ways = {f"{count} workers": partial(engine.generate, prompts, 0) for count, engine in engines.items()}
        return in_turn(ways, repeats)
    finally:
        for engine in engines.values():
            engine.close()


def rollout(size: str, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Return shards of so many groups."""
    model, prompts, ways = random_model(size, dtype), prompts_of(), {}
    for groups in (1, 2, 4, 8):
        engine = HostCluster(shard_groups=groups).rollout_engine(build(), build, SAMPLING)
        engine.follow(LocalWeights(model, 0))
        ways[f"shards of {groups}"] = partial(engine.generate, prompts, 0)
    return in_turn(ways, repeats)


def gradient(size: str, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """So many shards of one update; the optimizer's step is part of it."""
    model, prompts, ways = random_model(size, dtype), prompts_of(4 if size == "38M" else 2), {}
    engine = build()
    engine.follow(LocalWeights(model, 0))
    groups = [
        Group(group.prompt, group.completions, tuple(Score(float(row % 2)) for row in range(GROUP_SIZE)))
        for group in engine.generate(prompts, 0)
    ]
    config = LearnerConfig(masters="split", moments="bfloat16") if dtype == torch.bfloat16 else LearnerConfig()
    local = config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.0), 0.0), dtype=dtype)
    batch = collate(groups)
    batch = batch.with_advantages(GroupAdvantage()(batch))
    batch = batch.with_weights(TokenMean()(batch))
    for count in (1, 2, 4, 8, 16):
        learner = HostCluster(gradient_shards=count).learner(lambda: local)
        ways[f"{count} shards"] = partial(learner.update, batch)
    return in_turn(ways, repeats)


def weights(size: str, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Return a version that is new each time, to two workers."""
    model = random_model(size, dtype)
    fleet = HostCluster(rollout_workers=2).fleet(partial(Worker, model, build, 1), 2, "workers")
    version = 0

    def send() -> None:
        nonlocal version
        version += 1
        snapshot = Snapshot(model, version)
        handle = fleet.put(snapshot.pieces())
        open_calls = {fleet.call(worker, "take", version, snapshot.digest, handle) for worker in workers}
        deadline = time.monotonic() + WAIT_SECONDS
        while open_calls:
            if time.monotonic() > deadline:
                raise SystemExit(f"the workers did not take the weights within {WAIT_SECONDS:g} seconds")
            for event in fleet.wait(1.0):
                if not isinstance(event, Replied):
                    raise SystemExit(f"a worker was lost: {event}")
                open_calls.discard(event.number)

    try:
        workers = fleet.settled(START_SECONDS)
        if len(workers) != 2:
            raise SystemExit(f"of 2 workers {len(workers)} are up after {START_SECONDS:g} seconds")
        return {"bytes": Snapshot(model, 0).nbytes, **in_turn({"2 workers": send}, repeats)}
    finally:
        fleet.close()


PARTS = {"decode": decode, "rollout": rollout, "gradient": gradient, "weights": weights}


def main() -> None:
    """Measure one part, and keep it in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results/cluster_workers.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = machine.load()
    found = PARTS[given.part](given.size, getattr(torch, given.dtype), given.repeats)
    about = {"machine": machine.describe(), "load before and after": [load, machine.load()]}
    table = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    name = given.size if given.dtype == "bfloat16" else f"{given.size} {given.dtype}"
    table.setdefault(given.part, {})[name] = {**found, **about}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
