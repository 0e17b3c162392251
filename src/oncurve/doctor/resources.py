"""Rules of what a run costs: rewards that fail, phases that take too long, memory near its limit."""

from __future__ import annotations

from oncurve.doctor.case import MOST, Case
from oncurve.doctor.rule import Rule

FAULTS = 0.1
"""The share of completions without a usable reward from which the reward is broken."""

WAITING, CROWDED = 0.5, 1 / 3
"""The share of a step's time spent waiting for rewards, and on the run queue (per thread), from which it is a hint."""


def _faults(case: Case) -> str | None:
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


def _slow_rewards(case: Case) -> str | None:
    share = _share_of_step(case, "time/reward")
    if share < WAITING:
        return None
    return f"In the last {case.span} steps {share:.0%} of the time is spent waiting for rewards (time/reward)"


def _crowded(case: Case) -> str | None:
    threads = case.setting("run.threads")
    share = _share_of_step(case, "time/processor_wait") / (threads if isinstance(threads, int) else 1)
    if share < CROWDED:
        return None
    return f"In the last {case.span} steps threads had no processor for {share:.0%} of the time (time/processor_wait)"


def _memory(case: Case) -> str | None:
    repeated, peak = case.total("optim/out_of_memory"), case.last("memory/peak_bytes", 1)
    if repeated:
        return f"In the last {case.span} steps {repeated:.0f} updates ran out of memory and were repeated"
    if not peak or not case.memory or peak[0] < MOST * case.memory:
        return None
    return f"The peak is {peak[0] / 2**30:.3g} GiB of {case.memory / 2**30:.3g} GiB, {peak[0] / case.memory:.0%}"


RESOURCE_RULES = (
    Rule(
        "reward-faults",
        "alarm",
        _faults,
        "A completion whose reward fails is left out of statistics and loss, so these prompts teach nothing.",
        (
            "Read the fault texts in rollouts/ (the field fault).",
            "Fix the function, or give it more time or memory (timeout_seconds, memory_limit_bytes in [[rewards]]).",
        ),
    ),
    Rule(
        "memory-near-limit",
        "alarm",
        _memory,
        "A longer batch than any before does not fit any more, and ends the run.",
        (
            "Lower learner.tokens_per_micro_batch, which changes no result.",
            "Set learner.gradient_checkpointing=true, learner.moments=bfloat16, or rollout.max_concurrent lower.",
            "Let oncurve plan name what else reduces the peak.",
        ),
    ),
    Rule(
        "slow-rewards",
        "hint",
        _slow_rewards,
        "While the step waits for rewards, neither sampling nor training goes on.",
        (
            "Score completions one by one in worker processes (a function named by its path): that overlaps with "
            "sampling, and processes in [[rewards]] raises their number.",
            "Make the function faster, or cache what it computes again and again.",
        ),
    ),
    Rule(
        "crowded-processors",
        "hint",
        _crowded,
        "Other processes, the run's reward workers among them, use the same processors.",
        (
            "End the other work, or start with a smaller run.threads (1 for a small model).",
            "Give the rewards fewer processes in [[rewards]].",
            "With [cluster], lower cluster.rollout_workers or cluster.learner_ranks, which changes no result.",
        ),
    ),
)
