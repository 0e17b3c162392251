"""Rules of what a run costs: rewards that fail, phases that take too long, memory near its limit."""

from __future__ import annotations

from oncurve.doctor.case import MOST, Case

FAULTS = 0.1
"""The share of completions without a usable reward from which the reward is broken."""

WAITING, CROWDED = 0.5, 1 / 3
"""The share of a step's time spent waiting for rewards, and on the run queue (per thread), from which it is a hint."""


def reward_faults(case: Case) -> str | None:
    prompts, size = case.setting("data.prompts_per_step"), case.setting("rollout.group_size")
    invalid = case.total("completions/invalid")
    if not invalid or not isinstance(prompts, int) or not isinstance(size, int):
        return None
    sampled = case.total("groups/sampled") * size or case.span * prompts * size
    if invalid < FAULTS * sampled:
        return None
    return f"{invalid:.0f} of the last {sampled:.0f} completions have no usable reward"


def _share_of_step(case: Case, key: str) -> float:
    part, step = case.mean(key), case.mean("time/step")
    return part / step if part is not None and step else 0.0


def slow_rewards(case: Case) -> str | None:
    share = _share_of_step(case, "time/reward")
    if share < WAITING:
        return None
    return f"In the last {case.span} steps {share:.0%} of the time is spent waiting for rewards (time/reward)"


def crowded_processors(case: Case) -> str | None:
    threads = case.setting("run.threads")
    share = _share_of_step(case, "time/processor_wait") / (threads if isinstance(threads, int) else 1)
    if share < CROWDED:
        return None
    waited = f"threads waited for a processor {share:.2g} seconds per second of a step (time/processor_wait)"
    return f"In the last {case.span} steps {waited}"


def memory_near_limit(case: Case) -> str | None:
    repeated, peak = case.total("optim/out_of_memory"), case.last("memory/peak_bytes", 1)
    if repeated:
        return f"In the last {case.span} steps {repeated:.0f} updates ran out of memory and were repeated"
    if not peak or not case.memory or peak[0] < MOST * case.memory:
        return None
    return f"The peak is {peak[0] / 2**30:.3g} GiB of {case.memory / 2**30:.3g} GiB, {peak[0] / case.memory:.0%}"
