"""Advice: what the metrics of the last steps show to be wrong with a run, and which settings change it.

A rule is a pure function of the last steps' metrics. Its thresholds are beyond what healthy runs reach: where a rule
holds, the run will not get better by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

History = Sequence[Mapping[str, float]]

RECENT = 3
"""Steps for which a state must last before there is advice on it."""

WINDOW = 11
"""Steps of history that the rules read: the recent ones, and those before."""

BEFORE = 5
"""Steps before the recent ones that a comparison needs."""

CONSTANT, TRUNCATED, SOLVED = 0.9, 0.95, 0.8
UNMOVED, UNMOVED_STEP = 1e-3, 40
ROUNDING = 2e-5
"""Nats per token: a KL in bfloat16 may be this large from rounding alone."""
FELL, JUMPED = 3.0, 3.0
LEAST_ENTROPY = 0.01

_NO_SIGNAL = (
    "GRPO learns from the differences between completions of one prompt: where all rewards of a group are the same, "
    "every advantage is 0, and so is the gradient. "
)


@dataclass(frozen=True)
class Rule:
    """A state of a run that needs a change: whether it `holds` at the end of a history, and the advice on it."""

    name: str
    holds: Callable[[History], bool]
    text: Callable[[History], str]


@dataclass(frozen=True)
class Advice:
    """The advice of one rule: its `name`, and a `text` of a few lines with the settings to change."""

    name: str
    text: str


def advise(history: History, told: Collection[str] = ()) -> Advice | None:
    """The advice of the first rule that holds at the end of `history`, each step's metrics in order; None: all is well.

    `told`: names of rules whose advice was given already. A rule whose metrics are missing does not hold.
    """
    for rule in RULES:
        if rule.name not in told and rule.holds(history):
            return Advice(rule.name, rule.text(history))
    return None


def _last(history: History, key: str, count: int = RECENT) -> list[float]:
    """The metric's last `count` values; empty where one of them is missing."""
    values = [line[key] for line in list(history)[-count:] if key in line]
    return values if len(values) == count else []


def _at_least(history: History, key: str, least: float) -> bool:
    values = _last(history, key)
    return bool(values) and min(values) >= least


def _truncated(history: History) -> bool:
    return _at_least(history, "completions/truncated", TRUNCATED)


def _solved(history: History) -> bool:
    """Whether rewards between 0 and 1 are mostly 1: constant groups and a low entropy are then as they should be."""
    rewards = _last(history, "reward/mean")
    inside = all(0.0 <= line.get("reward/mean", 0.0) <= 1.0 for line in history)
    return inside and bool(rewards) and min(rewards) >= SOLVED


def _of_groups_alone(history: History) -> bool:
    """Whether no step shows an advantage that constant groups have all the same, as with a critic or a teacher."""
    return not any(line.get("groups/constant") == 1 and line.get("advantage/abs_mean") for line in history)


def _constant(history: History) -> bool:
    least = 1.0 if _solved(history) else CONSTANT
    constant = _at_least(history, "groups/constant", least) and bool(_last(history, "reward/mean"))
    return constant and _of_groups_alone(history)


def _entropy_gone(history: History) -> bool:
    entropy = _last(history, "policy/entropy")
    return bool(entropy) and max(entropy) < LEAST_ENTROPY and not _solved(history)


def _unmoved(history: History) -> bool:
    """Whether the KL to a reference that does not move is negligible after the warm-up."""
    lines = list(history)[-RECENT:]
    kl, coefficient, rate = (_last(lines, key) for key in ("policy/kl", "policy/kl_coef", "optim/learning_rate"))
    if not kl or not coefficient or lines[-1].get("step", 0) < UNMOVED_STEP:
        return False
    if (rate and rate[-1] > rate[0]) or any("reference/moved" in line for line in history):
        return False
    return all(
        beta > 0 and abs(value) < max(UNMOVED * beta, ROUNDING) for value, beta in zip(kl, coefficient, strict=True)
    )


def _unstable(history: History) -> bool:
    """Whether the reward falls below the range of the steps before while the KL rises above it."""
    before, now = list(history)[-WINDOW:-RECENT], list(history)[-RECENT:]
    key = "policy/kl" if all("policy/kl" in line for line in [*before, *now]) else "policy/kl_old"
    rewards, kl = _last(before, "reward/mean", len(before)), _last(before, key, len(before))
    fallen, jumped = _last(now, "reward/mean"), _last(now, key)
    if len(rewards) < BEFORE or len(kl) < BEFORE or not fallen or not jumped:
        return False
    mean = statistics.fmean(rewards)
    fall = max(FELL * statistics.pstdev(rewards), 0.1 * abs(mean))
    return mean - statistics.fmean(fallen) > fall and statistics.fmean(jumped) > JUMPED * max(0.0, *kl)


def _of_constant(history: History) -> str:
    rewards, shares = _last(history, "reward/mean"), _last(history, "groups/constant")
    groups = "every group" if min(shares) == 1.0 else f"{min(shares):.0%} or more of the groups"
    if all(reward == 0.0 for reward in rewards):
        return (
            f"Every reward of the last {RECENT} steps is 0: no completion solved its prompt, not even by chance. "
            + _NO_SIGNAL
            + "More steps will not change this. What helps, in this order:\n"
            "  1. read some completions in rollouts/: if there are right answers, the reward does not recognise them;\n"
            "  2. use easier prompts, some of which the model solves now and then (oncurve eval prints pass@k);\n"
            "  3. give partial credit, for the form of the answer or for steps on the way to it;\n"
            "  4. use a larger or better trained model, or a larger rollout.group_size."
        )
    return (
        f"In the last {RECENT} steps the rewards within {groups} are the same (mean {rewards[-1]:.3g}). "
        + _NO_SIGNAL
        + "What helps, in this order:\n"
        "  1. read some completions in rollouts/: if they are all alike, raise rollout.temperature;\n"
        "  2. if all are right, the prompts are too easy: use harder ones, or stop here;\n"
        "  3. if nearly all are wrong, use easier prompts, or a reward with partial credit;\n"
        "  4. use a finer reward, or a larger rollout.group_size."
    )


def _of_truncated(history: History) -> str:
    share = min(_last(history, "completions/truncated"))
    share_of = "all completions" if share == 1.0 else f"{share:.0%} or more of the completions"
    return (
        f"In the last {RECENT} steps {share_of} are cut off at rollout.max_new_tokens. What helps, in this order:\n"
        "  1. read some completions in rollouts/: if they go on after their answer, the model's end token is never "
        "sampled: set rollout.eos_ids or rollout.stop, or check the chat template (data.chat);\n"
        "  2. if they have not reached it, raise rollout.max_new_tokens, or ask for shorter answers in data.template;\n"
        "  3. where some do end, filter.mask_truncated=true leaves the others out of the loss."
    )


def _of_entropy(history: History) -> str:
    return (
        f"In the last {RECENT} steps the entropy is below {LEAST_ENTROPY:g} nats per token: the policy writes the same "
        "every time and explores nothing. If it does not solve the task yet, go back to an earlier checkpoint and\n"
        "  1. lower learner.learning_rate, or raise kl.coef;\n"
        "  2. raise objective.clip_high (0.28 is usual), rollout.temperature, or entropy.coef (0.001)."
    )


def _of_unmoved(history: History) -> str:
    beta = _last(history, "policy/kl_coef")[-1]
    least = f"{UNMOVED:g} of its coefficient ({beta:g})" if UNMOVED * beta > ROUNDING else "rounding causes"
    return (
        f"After {UNMOVED_STEP} steps the policy has hardly moved from the reference: the KL is "
        f"{_last(history, 'policy/kl')[-1]:.1e} nats per token, less than {least}. The learning rate is too low: raise "
        "learner.learning_rate 3 to 10 times."
    )


def _of_unstable(history: History) -> str:
    return (
        "The reward falls while the KL jumps: the updates are too large, and the policy loses what it has learned. "
        "Stop, and continue from an earlier checkpoint with\n"
        "  1. a lower learner.learning_rate, 3 to 10 times;\n"
        "  2. a higher kl.coef, a lower learner.max_grad_norm, or fewer learner.ppo_epochs and learner.minibatches."
    )


RULES = (
    Rule("truncated", _truncated, _of_truncated),
    Rule("constant", _constant, _of_constant),
    Rule("unstable", _unstable, _of_unstable),
    Rule("entropy", _entropy_gone, _of_entropy),
    Rule("unmoved", _unmoved, _of_unmoved),
)
"""In the order of precedence; each gives its advice once per run."""
