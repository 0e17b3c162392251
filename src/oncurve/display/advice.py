"""What the metrics of the last steps say is wrong with a run, and which setting changes it.

A rule is a pure function of the last steps' metrics: no rule, no threshold depends on anything else. The thresholds
leave out what healthy runs do: a rule that holds says that the run as it is will not get better by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["RULES", "WINDOW", "Advice", "Rule", "advise"]

History = Sequence[Mapping[str, float]]

RECENT = 3
"""Steps for which a state must last before it is spoken of."""

WINDOW = 11
"""Steps of history that the rules look at: the recent ones, and what came before them."""

BEFORE = 5
"""Steps before the recent ones that a comparison needs at least."""

CONSTANT, TRUNCATED, SOLVED = 0.9, 0.95, 0.8
UNMOVED, UNMOVED_STEP = 1e-3, 40
ROUNDING = 2e-5
"""Nats a token: what a KL in bfloat16 may be without any movement, from weights that round the other way."""
FELL, JUMPED = 3.0, 3.0
LEAST_ENTROPY = 0.01

_NO_SIGNAL = (
    "GRPO learns only from differences between completions of one prompt; where all rewards of a group are the same, "
    "every advantage is 0 and so is the gradient. "
)


@dataclass(frozen=True)
class Rule:
    """A state of a run that needs a change: whether it `holds` at the end of a history, and what to say of it."""

    name: str
    holds: Callable[[History], bool]
    text: Callable[[History], str]


@dataclass(frozen=True)
class Advice:
    """What one rule has to say: its `name`, and a `text` of a few lines with the settings to change."""

    name: str
    text: str


def advise(history: History, told: Collection[str] = ()) -> Advice | None:
    """The first rule that holds at the end of `history`, each step's metrics in order; None: all is well.

    `told`: names of rules that were spoken of already. A rule whose metrics are missing does not hold.
    """
    for rule in RULES:
        if rule.name not in told and rule.holds(history):
            return Advice(rule.name, rule.text(history))
    return None


def _last(history: History, key: str, count: int = RECENT) -> list[float]:
    """The metric's last `count` values; nothing where one of them is missing."""
    values = [line[key] for line in list(history)[-count:] if key in line]
    return values if len(values) == count else []


def _at_least(history: History, key: str, least: float) -> bool:
    values = _last(history, key)
    return bool(values) and min(values) >= least


def _truncated(history: History) -> bool:
    return _at_least(history, "truncated_fraction", TRUNCATED)


def _solved(history: History) -> bool:
    """Whether rewards between 0 and 1 are mostly 1: groups are constant then, and the policy is sure of itself."""
    rewards = _last(history, "reward")
    inside = all(0.0 <= line.get("reward", 0.0) <= 1.0 for line in history)
    return inside and bool(rewards) and min(rewards) >= SOLVED


def _constant(history: History) -> bool:
    least = 1.0 if _solved(history) else CONSTANT
    return _at_least(history, "constant_groups", least) and bool(_last(history, "reward"))


def _entropy_gone(history: History) -> bool:
    entropy = _last(history, "entropy")
    return bool(entropy) and max(entropy) < LEAST_ENTROPY and not _solved(history)


def _unmoved(history: History) -> bool:
    """The KL to a reference that stays where it is, next to its coefficient, once the warm-up is over."""
    lines = list(history)[-RECENT:]
    kl, coefficient, rate = (_last(lines, key) for key in ("kl", "kl_coef", "learning_rate"))
    if not kl or not coefficient or lines[-1].get("step", 0) < UNMOVED_STEP:
        return False
    if (rate and rate[-1] > rate[0]) or any("reference_moved" in line for line in history):
        return False
    return all(
        beta > 0 and abs(value) < max(UNMOVED * beta, ROUNDING) for value, beta in zip(kl, coefficient, strict=True)
    )


def _unstable(history: History) -> bool:
    """The reward falls out of the range of the steps before, while the KL leaves it upwards."""
    before, now = list(history)[-WINDOW:-RECENT], list(history)[-RECENT:]
    key = "kl" if all("kl" in line for line in [*before, *now]) else "approx_kl_old"
    rewards, kl = _last(before, "reward", len(before)), _last(before, key, len(before))
    fallen, jumped = _last(now, "reward"), _last(now, key)
    if len(rewards) < BEFORE or len(kl) < BEFORE or not fallen or not jumped:
        return False
    mean = statistics.fmean(rewards)
    fall = max(FELL * statistics.pstdev(rewards), 0.1 * abs(mean))
    return mean - statistics.fmean(fallen) > fall and statistics.fmean(jumped) > JUMPED * max(0.0, *kl)


def _of_constant(history: History) -> str:
    rewards, shares = _last(history, "reward"), _last(history, "constant_groups")
    groups = "every group" if min(shares) == 1.0 else f"{min(shares):.0%} or more of the groups"
    if all(reward == 0.0 for reward in rewards):
        return (
            f"For {RECENT} steps every reward has been 0: no completion solved its prompt, not even by chance. "
            + _NO_SIGNAL
            + "More of the same will not change this. What helps, in this order:\n"
            "  1. read some completions in rollouts/: if right answers are there, the reward does not recognise them;\n"
            "  2. easier prompts, some of which the model solves now and then (oncurve eval prints pass@k);\n"
            "  3. a reward with partial credit, for the form of the answer or for steps on the way to it;\n"
            "  4. a larger or better trained model, or a larger rollout.group_size."
        )
    return (
        f"For {RECENT} steps the rewards within {groups} have been the same (mean {rewards[-1]:.3g}). "
        + _NO_SIGNAL
        + "What helps, in this order:\n"
        "  1. read some completions in rollouts/: if they are all alike, raise rollout.temperature;\n"
        "  2. if all are right, the prompts are too easy: harder ones, or the work is done;\n"
        "  3. if nearly all are wrong, easier prompts, or a reward with partial credit;\n"
        "  4. a finer reward, or a larger rollout.group_size."
    )


def _of_truncated(history: History) -> str:
    share = min(_last(history, "truncated_fraction"))
    share_of = "all completions" if share == 1.0 else f"{share:.0%} or more of the completions"
    return (
        f"For {RECENT} steps {share_of} have been cut "
        "off at rollout.max_new_tokens: what they were going to answer is never seen. What helps, in this order:\n"
        "  1. read some completions in rollouts/: if they go on after their answer, the model's end token is never "
        "sampled: set rollout.eos_ids or rollout.stop, or check the chat template (data.chat);\n"
        "  2. if they are still at work, raise rollout.max_new_tokens, or ask for shorter answers in data.template;\n"
        "  3. where some do end, filter.mask_truncated=true leaves the others out of the loss."
    )


def _of_entropy(history: History) -> str:
    return (
        f"For {RECENT} steps the entropy has been below {LEAST_ENTROPY:g} nats a token: the policy says the same thing "
        "every time and finds nothing new. If it does not solve the task yet, go back to an earlier checkpoint and\n"
        "  1. lower learner.learning_rate, or raise kl.coef;\n"
        "  2. raise objective.clip_high (0.28 is usual), rollout.temperature, or entropy.coef (0.001)."
    )


def _of_unmoved(history: History) -> str:
    beta = _last(history, "kl_coef")[-1]
    least = f"{UNMOVED:g} of its coefficient ({beta:g})" if UNMOVED * beta > ROUNDING else "rounding makes"
    return (
        f"After {UNMOVED_STEP} steps the policy has hardly left the reference: the KL is "
        f"{_last(history, 'kl')[-1]:.1e} nats a token, less than {least}. The learning rate is too low: raise "
        "learner.learning_rate 3 to 10 times."
    )


def _of_unstable(history: History) -> str:
    return (
        "The reward falls while the KL jumps: the updates are too large, and the policy is leaving what it had "
        "learned. Stop, and go on from an earlier checkpoint with\n"
        "  1. a lower learner.learning_rate, 3 to 10 times;\n"
        "  2. a higher kl.coef, a lower learner.max_grad_norm, or fewer learner.passes and learner.minibatches."
    )


RULES = (
    Rule("truncated", _truncated, _of_truncated),
    Rule("constant", _constant, _of_constant),
    Rule("unstable", _unstable, _of_unstable),
    Rule("entropy", _entropy_gone, _of_entropy),
    Rule("unmoved", _unmoved, _of_unmoved),
)
"""In the order in which they are spoken of; each once in a run."""
