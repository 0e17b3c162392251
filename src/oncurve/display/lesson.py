"""GRPO explained on a real group, and its effect shown on the same problems before and after training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from oncurve.base.output import visible
from oncurve.display.text import is_plain, one_line, printable, wrapped

ABOVE, BELOW = "cyan", "dark_orange"  # colour-blind readers can tell them apart, on light and on dark
_ENDED = {"eos": "", "stop": "", "length": " (cut off)"}


@dataclass(frozen=True)
class ScoredCompletion:
    """One completion of a group: its text, how it ended ("eos", "stop", "length"), reward and advantage.

    The reward is None where it failed; such a completion has no part in statistics and loss.
    """

    text: str
    reward: float | None
    advantage: float | None
    ended: str = "eos"


@dataclass(frozen=True)
class BeforeAfter:
    """One problem, and the policy's completions before and after training, with whether each was right."""

    problem: str
    answer: str
    before: str
    before_correct: bool
    after: str
    after_correct: bool


def explain_group(group: Sequence[ScoredCompletion]) -> str:
    """Return what GRPO computes for this group, whose rewards differ, in words and with its numbers."""
    known = [(item.reward, item.advantage) for item in group if item.reward is not None and item.advantage is not None]
    count, rewards = len(known), [reward for reward, _ in known]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    worked = (f"  ({r:g} - {mean:.2f}) / {deviation:.2f} = {a:+.2f}" for r, a in (max(known), min(known)))
    lines = (
        f"The same model answered the same question {len(group)} times. There is no solution to imitate and no second "
        "model that scores: each answer is compared with the others of its group.",
        f"The mean reward is {mean:.2f}, the standard deviation {deviation:.2f} (the squared distances are divided by "
        f"{count} - 1 = {count - 1}: {count} are a sample of all possible ones); "
        "advantage = (reward - mean) / standard deviation:",
        *worked,
        "One step of GRPO makes the tokens of answers above the mean (+) more likely, and those below (-) less likely: "
        "the further from the mean, the more.",
    )
    return "\n".join(lines)


def show_group(console: Console, prompt: str, group: Sequence[ScoredCompletion], title: str = "One group") -> None:
    """Print a real group, best first, with rewards and advantages, and an explanation.

    In colour on a terminal, plain elsewhere. Control characters in texts are written as escapes.
    """
    ranked = sorted(group, key=lambda item: -math.inf if item.advantage is None else item.advantage, reverse=True)
    plain, width = is_plain(console), min(100, console.width)
    lines = [Text(f"\n{title}", "" if plain else "bold"), Text(wrapped(visible(prompt).strip(), width, "  "))]
    lines.append(Text("\n  reward  advantage  completion"))
    for item in ranked:
        style = "" if plain or not item.advantage else ABOVE if item.advantage > 0 else BELOW
        text = one_line(item.text, 110, " | " if plain else " ⏎ ") or "(nothing)"
        numbers = f"  {_number(item.reward, '.2f'):>6}  {_number(item.advantage, '+.2f'):>9}  "
        lines.append(Text.assemble(numbers, (text, style), _ENDED.get(item.ended, "")))
    for line in (*lines, Text(f"\n{wrapped(explain_group(group), width, '  ')}\n")):
        line.plain = printable(line.plain, console)
        console.print(line, soft_wrap=True)


def show_before_after(console: Console, problems: Sequence[BeforeAfter]) -> None:
    """Print the policy's completions of the same problems before and after training, and which were right."""
    plain = is_plain(console)
    for number, item in enumerate(problems, start=1):
        console.print(Text(f"\nProblem {number}", "bold"))
        console.print(
            Text(printable(f"{visible(item.problem).strip()}  (answer: {visible(item.answer)})", console)),
            soft_wrap=plain,
        )
        for label, text, correct in (
            ("before", item.before, item.before_correct),
            ("after", item.after, item.after_correct),
        ):
            style, verdict = (ABOVE, "right") if correct else (BELOW, "wrong")
            written = one_line(text, 200, " | " if plain else " ⏎ ") or "(nothing)"
            line = Text.assemble(
                (f"  {label:<7}", "dim"), (f"{verdict}  ", f"bold {style}"), printable(written, console)
            )
            console.print(line, soft_wrap=plain)


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
