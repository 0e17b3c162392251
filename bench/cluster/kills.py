"""The cost of kills: `python -m bench.cluster.kills --workers 4 --every 1 --seconds 60 --out FILE`.

Rollouts of a model of random weights, each by other weights, are sampled undisturbed for `--seconds`. Then as many are
sampled while a process outside kills one random worker every so many seconds. Writes JSON: the seconds of both, their
ratio, the workers that were killed, and whether all groups were the same bit for bit. Exit code 1 where they were not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.cluster.fsdp import make_learner
from bench.machine import describe
from oncurve.cluster import HostCluster
from oncurve.models import CausalModel, LocalWeights
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt

SAMPLING = Sampling(group_size=4, max_new_tokens=32)
PROMPTS = [Prompt(number, "", tuple(range(10 + number, 20 + number))) for number in range(16)]


def forked() -> list[psutil.Process]:
    """Return the workers: what the nursery of this process has forked."""
    with suppress(psutil.NoSuchProcess):
        return [
            child
            for nursery in psutil.Process().children()
            if any("nursery" in word for word in nursery.cmdline())
            for child in nursery.children()
        ]
    return []


@contextmanager
def kills(every: float, killed: list[int]) -> Iterator[None]:
    """Within: a random worker is killed every so many seconds."""
    stop, draw = threading.Event(), random.Random(0)

    def work() -> None:
        while not stop.wait(every):
            if alive := forked():
                chosen = draw.choice(alive)
                with suppress(psutil.NoSuchProcess):
                    chosen.kill()
                    killed.append(chosen.pid)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10.0)


def rollouts(model: CausalModel, workers: int, seconds: float, count: int) -> tuple[float, list[list[Group]]]:
    """Rollouts for so many seconds, or `count` of them where that is not 0; the seconds of all but the start."""
    build = partial(InProcessEngine, SAMPLING, seed=5)
    cluster = HostCluster(rollout_workers=workers, shard_groups=2)
    found: list[list[Group]] = []
    bias = next(iter(model.module.parameters()))
    original = bias.detach().clone()
    with cluster.rollout_engine(build(), build, SAMPLING) as engine:  # type: ignore[attr-defined]
        engine.follow(LocalWeights(model, -1))
        engine.generate(PROMPTS, 0)
        began = time.perf_counter()
        while len(found) < count if count else time.perf_counter() - began < seconds:
            with torch.no_grad():
                bias.mul_(1.001)
            engine.follow(LocalWeights(model, len(found)))
            found.append(engine.generate(PROMPTS, len(found) + 1))
        spent = time.perf_counter() - began
    with torch.no_grad():
        bias.copy_(original)
    return spent, found


def measured(size: str, workers: int, every: float, seconds: float) -> dict[str, Any]:
    """Return both times and what was killed."""
    torch.set_num_threads(1)
    model: CausalModel = make_learner(size, "float32", 0.0).weights().local()
    killed: list[int] = []
    undisturbed, right = rollouts(model, workers, seconds, 0)
    before = os.getloadavg()[0]
    with kills(every, killed):
        disturbed, found = rollouts(model, workers, seconds, len(right))
    return {
        "machine": {**describe(), "load": before},
        "model": size,
        "workers": workers,
        "kill_every_seconds": every,
        "rollouts": len(right),
        "undisturbed_seconds": round(undisturbed, 2),
        "disturbed_seconds": round(disturbed, 2),
        "ratio": round(disturbed / undisturbed, 2),
        "killed": len(killed),
        "same_bits": found == right,
    }


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="6.5M")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = measured(options.size, options.workers, options.every, options.seconds)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return 0 if found["same_bits"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
