"""Rules of the learning signal: rewards that are all the same, and why; completions that are cut off."""

from __future__ import annotations

import re

from oncurve.doctor.case import MOST, Case, SampledGroup, such_as
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
