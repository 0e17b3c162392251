"""What a step's groups and batch say about it, as declared metrics; and the timer of the phases."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from oncurve.metrics import Metrics
from oncurve.types import Group, TrainBatch

__all__ = ["observe_batch", "observe_groups", "peak_memory_bytes", "timer"]


@contextmanager
def timer(metrics: Metrics, phase: str) -> Iterator[None]:
    """Adds the seconds spent inside to `seconds_<phase>`."""
    started = time.perf_counter()
    yield
    metrics.add(f"seconds_{phase}", time.perf_counter() - started)


def peak_memory_bytes() -> int:
    """The largest resident set this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def observe_groups(metrics: Metrics, groups: Sequence[Group], dropped: int) -> None:
    """Rewards, lengths, endings and faults of all completions of a step, also of groups that are left out."""
    for group in groups:
        rewards = [score.reward for score in group.scores if score.valid]
        for reward in rewards:
            metrics.add("reward", reward)
        if len(rewards) > 1:
            mean = math.fsum(reward / len(rewards) for reward in rewards)
            deviation = math.hypot(*(reward - mean for reward in rewards))  # no square, which could overflow
            metrics.add("reward_std", deviation / math.sqrt(len(rewards) - 1))
            metrics.add("constant_groups", float(max(rewards) == min(rewards)))
        for completion, score in zip(group.completions, group.scores, strict=True):
            metrics.add("completion_length", float(len(completion.ids)))
            metrics.add("completion_length_max", float(len(completion.ids)))
            metrics.add("truncated_fraction", float(completion.ended == "length"))
            metrics.add("invalid_completions", float(not score.valid))
            metrics.add("faults", float(score.fault is not None))
            if score.fault is not None:
                metrics.add(f"faults/{score.fault.partition(':')[0]}", 1.0)
            metrics.add("tokens", float(len(completion.ids)))
            for name, value in score.parts.items():
                if value is not None and math.isfinite(value):
                    metrics.add(f"reward/{name}", value)
    metrics.add("dropped_groups", float(dropped))


def observe_batch(metrics: Metrics, batch: TrainBatch) -> None:
    """What the learner is about to see: the size of the advantages."""
    assert batch.advantages is not None
    metrics.add("advantage_abs", batch.advantages.abs(), mask=batch.loss_mask)
    on_gpu = torch.cuda.is_available()
    metrics.add("memory_bytes", float(torch.cuda.max_memory_allocated() if on_gpu else peak_memory_bytes()))
