"""Rules of the updates and of the learning signal.

Rates that are too high or too low, KL, entropy, sampler and learner, skipped updates; rewards that are all the same,
and why; completions that are cut off.
"""

import re
import statistics
from collections.abc import Sequence

from oncurve.components import as_written
from oncurve.doctor.case import MOST, Case, SampledGroup, such_as
from oncurve.losses import CORRECTION_KINDS, OBJECTIVE_KINDS, corrects, has_importance_ratio
from oncurve.report import answer_column, answer_of_row

NOTHING_LEFT = 0.99
"""The share of constant groups from which a solved task has nothing left to learn from."""

SOLVED_PROMPTS = 0.4
"""The share of prompts that are always right from which the data is too easy."""

LOWEST = 0.02
"""A mean reward between 0 and 1 up to which nearly all completions are wrong."""

UNRECOGNISED, UNRECOGNISED_SHORT, LEAST_UNRECOGNISED = 0.05, 0.2, 5
"""The share of unrewarded completions that end in the right answer (and of answers of one character, which more end in
by chance), and their least number."""

_MARKED = re.compile(r"(?:####|\\boxed\{)\s*([^\n}]+)")


def _share(value: float) -> str:
    return "all" if value == 1 else f"{value:.0%} of the"


def truncated(case: Case) -> str | None:
    share = case.mean("completions/truncated")
    if share is None or share < MOST:
        return None
    limit = case.setting("rollout.max_new_tokens")
    limited = f"rollout.max_new_tokens ({limit})" if limit else "rollout.max_new_tokens"
    return f"In the last {case.span} steps {_share(share)} completions are cut off at {limited}"


def _right_answer(group: SampledGroup, named: str | None) -> str | None:
    """Return the right answer of a group's prompt, from the column that has it; None: no column that is known has
    it.
    """
    value = answer_of_row(group.columns, named)
    marked = _MARKED.findall(value or "")
    return str(marked[-1]).strip() if marked else value and value.strip()


def ends_with(text: str, answer: str) -> bool:
    """Return whether the last line of `text` that is not blank has `answer` as a whole word. Example: `#### 12.` has
    `12`.
    """
    lines = text.strip().splitlines()
    return bool(lines) and re.search(rf"(?<![\w.,]){re.escape(answer)}(?![\w]|[.,]\d)", lines[-1][-200:]) is not None


def answers_not_recognised(case: Case) -> str | None:
    if case.flat is None or not _lowest(case):
        return None
    named = answer_column(case.settings)
    found = unrewarded = 0
    shortest, with_hits = 2, list[SampledGroup]()
    for group, scored in case.scored():
        answer = _right_answer(group, named)
        if answer is not None:
            wrong = [sample for sample, reward in scored if reward <= LOWEST]
            hits = sum(ends_with(sample.text, answer) for sample in wrong)
            found, unrewarded = found + hits, unrewarded + len(wrong)
            shortest = min(shortest, len(answer)) if hits else shortest
            with_hits += [group] if hits else []
    least = UNRECOGNISED if shortest > 1 else UNRECOGNISED_SHORT
    if found < LEAST_UNRECOGNISED or found < least * unrewarded:
        return None
    last = f"{found} of the last {unrewarded} completions without a reward"
    return f"{last} end in the right answer{such_as(with_hits)}"


def _lowest(case: Case) -> bool:
    reward = case.mean("reward/mean")
    return case.bounded and reward is not None and reward <= LOWEST


def all_right(case: Case) -> str | None:
    return _right(case, NOTHING_LEFT)


def mostly_right(case: Case) -> str | None:
    return _right(case, MOST)


def _right(case: Case, least: float) -> str | None:
    if case.flat is None or case.flat < least or not case.solved:
        return None
    reward = case.mean("reward/mean")
    return f"In the last {case.span} steps {_share(case.flat)} groups are constant, with a mean reward of {reward:.3g}"


def prompts_always_right(case: Case) -> str | None:
    share = case.mean("curriculum/always_right")
    if share is None or share < SOLVED_PROMPTS:
        return None
    return f"{share:.0%} of the prompts are always right"


def identical_completions(case: Case) -> str | None:
    groups = [group for group in case.groups if len(group.samples) > 1]
    if not groups or case.solved:
        return None
    alike = [group for group in groups if len({sample.text for sample in group.samples}) == 1]
    if len(alike) < MOST * len(groups):
        return None
    return f"In {len(alike)} of the last {len(groups)} groups all completions are the same text{such_as(alike)}"


def all_wrong(case: Case) -> str | None:
    if case.flat is None or not _lowest(case):
        return None
    reward = case.mean("reward/mean")
    share = "every reward is 0" if reward == 0 else f"the mean reward is {reward:.2g}"
    return f"In the last {case.span} steps {share}: no completion solved its prompt, or hardly one"


def flat_reward(case: Case) -> str | None:
    if case.flat is None or case.solved:
        return None
    reward = case.mean("reward/mean")
    return (
        f"In the last {case.span} steps the rewards within {_share(case.flat)} groups are the same (mean {reward:.3g})"
    )


RUNAWAY = 1.0
"""Nats per token: a policy at this KL has little left of the model that it began as."""

FELL, JUMPED, HALVED = 3.0, 3.0, 0.5
BEFORE = 5
"""Steps before the last ones that a comparison needs."""

UNMOVED, UNMOVED_STEP = 1e-3, 40
ROUNDING = 2e-5
"""Nats per token: a KL in bfloat16 may be this large from rounding alone."""

SLOW = 1e-3
"""Nats per token: the slowest rates of docs/learning-rates.md at which a reward rose have more after 40 steps."""

LEAST_ENTROPY, ENTROPY_LEFT = 0.01, 0.05
MISMATCH, MISMATCH_FLOAT32 = 0.05, 1e-3
MEMORISED = 1.05


def _kl(case: Case) -> str:
    """Return the KL that tells how far the policy went: from the reference, or, without one, from the policy that
    sampled.
    """
    return "policy/kl" if case.last("policy/kl") else "policy/kl_old"


def rate_too_high(case: Case) -> str | None:
    """Return the reward falls while the KL jumps, or half of the best reward is lost at a KL that has run away.

    Where no KL is measured nearly all of the best reward has to be lost.
    """
    reward, kl = case.last("reward/mean"), case.last(_kl(case))
    if not reward:
        return None
    now = statistics.fmean(reward)
    before = [line for line in case.lines[: -case.span] if "reward/mean" in line]
    earlier = [line["reward/mean"] for line in (*case.opening, *before) if "reward/mean" in line]
    if not case.last("policy/kl") and earlier and now <= LEFT * max(earlier) and max(earlier) - now >= LEAST_FALL:
        return f"The reward fell to {now:.3g} from up to {max(earlier):.3g}; kl.coef = 0, so the KL is not known"
    if not kl:
        return None
    lost = earlier and max(earlier) - now >= max(LEAST_LOSS, HALVED * abs(max(earlier)))
    if not (lost and statistics.median(kl) >= RUNAWAY) and not _jumps(case, before, now, statistics.fmean(kl)):
        return None
    return (
        f"The reward fell to {now:.3g} from up to {max(earlier):.3g} while the KL went to {statistics.median(kl):.2g} "
        "nats per token"
    )


LEAST_LOSS = 0.05
"""A smaller loss of reward may be chance."""

LEFT, LEAST_FALL = 0.1, 0.1
"""The share of the best reward that is left, and the least loss, where no KL tells how far the policy went."""


def _jumps(case: Case, before: Sequence[object], now: float, kl: float) -> bool:
    """Return whether the reward is below the range of the eight steps before while the KL is above theirs."""
    lines = list(case.lines)[-case.span - 8 : -case.span]
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    others = [line[_kl(case)] for line in lines if _kl(case) in line]
    if len(before) < BEFORE or len(rewards) < BEFORE or len(others) < len(rewards):
        return False
    mean = statistics.fmean(rewards)
    fall = max(FELL * statistics.pstdev(rewards), 0.1 * abs(mean))
    return mean - now > fall and kl > JUMPED * max(0.0, *others)


def kl_runaway(case: Case) -> str | None:
    kl = case.last("policy/kl")
    if not kl or statistics.median(kl) < RUNAWAY:
        return None
    return f"The KL from the reference is {statistics.median(kl):.2g} nats per token in the last {case.span} steps"


def rate_too_low(case: Case) -> str | None:
    """Return the KL from a reference that does not move is negligible after the warm-up, though there is a gradient."""
    coefficient = case.last("policy/kl_coef")
    return _unmoved(case, max(UNMOVED * coefficient[-1], ROUNDING)) if coefficient else None


def rate_perhaps_too_low(case: Case) -> str | None:
    """Return the KL is smaller than that of any run that learned here, and the reward does not rise."""
    found = None if case.rising or case.solved else _unmoved(case, SLOW)
    return found and f"{found}, and the reward has not risen"


def _unmoved(case: Case, least: float) -> str | None:
    """Return the KL is below `least` after the warm-up, where there is a gradient and the reference does not move."""
    kl, coefficient, rate = (case.last(key) for key in ("policy/kl", "policy/kl_coef", "optim/learning_rate"))
    warming = bool(rate) and rate[-1] > rate[0]
    moved = any("reference/moved" in line for line in case.lines)
    if not kl or not coefficient or case.step < UNMOVED_STEP or warming or moved or case.flat:
        return None
    if coefficient[-1] <= 0 or max(map(abs, kl)) >= least:
        return None
    return f"After {case.step} steps the KL from the reference is {kl[-1]:.1e} nats per token, less than {least:.1e}"


def entropy_collapse(case: Case) -> str | None:
    now, first = case.mean("policy/entropy"), case.at_first("policy/entropy")
    if now is None or case.solved or case.setting("advantage.kind") == "demonstration":
        return None
    fallen = first is not None and now < ENTROPY_LEFT * first and not case.rising
    if now >= LEAST_ENTROPY and not fallen:
        return None
    since = f", {now / first:.1%} of that of the first steps" if first else ""
    return f"The entropy is {now:.2g} nats per token in the last {case.span} steps{since}"


def demonstrations_memorised(case: Case) -> str | None:
    losses = [line["eval/loss"] for line in case.lines if "eval/loss" in line]
    if len(losses) < 2 or losses[-1] <= MEMORISED * min(losses):
        return None
    return f"The loss of held-out demonstrations is {losses[-1]:.3g} nats per token, and was {min(losses):.3g} before"


def sampler_mismatch(case: Case) -> str | None:
    value = case.mean("policy/mismatch")
    objective = as_written(case.settings.get("objective"), OBJECTIVE_KINDS, "clipped")
    corrected = corrects(as_written(case.settings.get("correction"), CORRECTION_KINDS, "none"))
    contained = bool(case.setting("cluster.lag")) and has_importance_ratio(objective)
    exact = case.setting("model.dtype") in ("float32", "float64") and not case.setting("filter.dynamic_sampling")
    if value is None or corrected or contained or value < (MISMATCH_FLOAT32 if exact else MISMATCH):
        return None
    return f"Log-probs of learner and sampler differ by {value:.2g} nats per token in the last {case.span} steps"


def advantages_not_finite(case: Case) -> str | None:
    tokens = case.total("advantage/nonfinite")
    if not tokens:
        return None
    steps = min(case.span, len(case.lines))
    return f"{tokens:.0f} tokens of the last {steps} steps have an advantage that is not finite"


def updates_skipped(case: Case) -> str | None:
    skipped, made = (case.total(key) for key in ("optim/updates_skipped", "optim/updates"))
    if not skipped:
        return None
    return f"{skipped:.0f} of the last {skipped + made:.0f} updates had a loss or gradient that is not finite"
