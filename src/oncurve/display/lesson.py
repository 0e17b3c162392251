"""GRPO explained on a real group, and its effect shown on the same problems before and after training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncurve.base.output import visible
from oncurve.display.text import is_plain, one_line, printable, wrapped

ABOVE, BELOW = "cyan", "dark_orange"  # colour-blind readers can tell them apart, on light and on dark
_BAR = 8
_ENDED = {"eos": "", "stop": "", "length": " (cut off)"}


@dataclass(frozen=True)
class ScoredStep:
    """One step of a completion: its text, its reward, and the advantage of its last token."""

    text: str
    reward: float
    advantage: float


@dataclass(frozen=True)
class ScoredCompletion:
    """One completion of a group: its text, how it ended ("eos", "stop", "length"), reward and advantage.

    The reward is None where it failed; such a completion has no part in statistics and loss. Where steps were scored
    they are in `steps`, and the advantage is that of the first token.
    """

    text: str
    reward: float | None
    advantage: float | None
    ended: str = "eos"
    steps: tuple[ScoredStep, ...] = ()

    def line(self, room: int, mark: str = " | ") -> str:
        """Return the completion on one line, each scored step with its reward and its advantage."""
        if not self.steps:
            return one_line(self.text, room, mark)
        each = max(8, room // len(self.steps))
        return mark.join(
            f"{one_line(step.text.strip(), each, mark)} ({step.reward:g}, {step.advantage:+.2f})" for step in self.steps
        )


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
    """Return what GRPO computes for this group, in words and with its numbers."""
    known = [(item.reward, item.advantage) for item in group if item.reward is not None and item.advantage is not None]
    rewards = [reward for reward, _ in known]
    if not rewards:
        return "No completion of this group has a reward, so the group teaches nothing."
    mean = math.fsum(rewards) / len(rewards)
    if min(rewards) == max(rewards):
        return (
            f"All {len(rewards)} rewards are {mean:.2f}: every advantage is 0, and this group teaches nothing. It is "
            "one of the constant groups."
        )
    if any(item.steps for item in group):
        return _explain_steps(group)
    lines = [
        f"The same model answered the same question {len(group)} times. There is no solution to imitate and no second "
        "model that scores: each answer is compared with the others of its group.",
        _arithmetic(known, mean),
        "One step of GRPO makes the tokens of answers above the mean (+) more likely, and those below (-) less likely: "
        "the further from the mean, the more.",
    ]
    return "\n".join(lines)


def _explain_steps(group: Sequence[ScoredCompletion]) -> str:
    """Process supervision of this group, with its own numbers."""
    pool = [step.reward for item in group for step in item.steps]
    mean = math.fsum(pool) / len(pool)
    lines = [
        f"The same model answered the same question {len(group)} times, and each line of an answer has a score of its "
        "own: its reward and its advantage follow it. There is no solution to imitate.",
    ]
    if min(pool) == max(pool):
        lines.append(f"All {len(pool)} rewards are {mean:g}: every advantage is 0, and this group teaches nothing.")
        return "\n".join(lines)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in pool) / (len(pool) - 1))
    lines += [
        f"The {len(pool)} steps of the group have a mean reward of {mean:.2f} and a standard deviation of "
        f"{deviation:.2f} ({_sample_of(len(pool))}). A step counts (reward - mean) / standard deviation, "
        "and the advantage of a token is the sum over the steps that end at it or after it:",
        f"  a step with reward {max(pool):g} counts {(max(pool) - mean) / deviation:+.2f}, one with {min(pool):g} "
        f"counts {(min(pool) - mean) / deviation:+.2f}",
        "So a wrong line becomes less likely even in an answer that begins well, and a right line is not punished for "
        "an error before it.",
    ]
    return "\n".join(lines)


def _sample_of(count: int) -> str:
    """Say how the standard deviation of `count` rewards was made: √(Σ (r - mean)² / (count - 1))."""
    return f"the squared distances are divided by {count} - 1 = {count - 1}: {count} are a sample of all possible ones"


def _arithmetic(known: Sequence[tuple[float, float]], mean: float) -> str:
    """Work out the advantages of the best and the worst answer as GRPO does, if they were made so."""
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward, _ in known) / (len(known) - 1))
    if any(not math.isclose(a, (r - mean) / deviation, rel_tol=1e-2, abs_tol=1e-3) for r, a in known):
        return (
            f"The mean reward is {mean:.2f}; the advantage says how far above (+) or below (-) the others an answer is."
        )
    worked = (f"  ({r:g} - {mean:.2f}) / {deviation:.2f} = {a:+.2f}" for r, a in (max(known), min(known)))
    head = f"The mean reward is {mean:.2f}, the standard deviation {deviation:.2f} ({_sample_of(len(known))}); "
    return "\n".join([head + "advantage = (reward - mean) / standard deviation:", *worked])


def show_group(
    console: Console,
    prompt: str,
    group: Sequence[ScoredCompletion],
    title: str = "One group",
    explanation: str | None = None,
) -> None:
    """Print a real group, best first, with rewards and advantages, and an explanation (None: `explain_group`).

    In colour on a terminal, plain lines elsewhere. Control characters in texts are written as escapes.
    """
    ranked = sorted(group, key=lambda item: -math.inf if item.advantage is None else item.advantage, reverse=True)
    plain = is_plain(console)
    largest = max((abs(item.advantage or 0.0) for item in group), default=0.0) or 1.0
    question = printable(visible(prompt).strip(), console)
    explanation = explanation or explain_group(group)
    if plain:
        lines = ["", title, wrapped(question, indent="  "), "", "  reward  advantage  completion"]
        lines += [
            f"  {_number(item.reward, '.2f'):>6}  {_number(item.advantage, '+.2f'):>9}  "
            f"{printable(item.line(110) + _ENDED.get(item.ended, ''), console)}"
            for item in ranked
        ]
        console.print(Text("\n".join([*lines, "", wrapped(explanation, indent="  "), ""])), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("advantage", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("completion", overflow="fold")
    room = max(40, 2 * (console.width - 40))
    for item in ranked:
        style = _style(item.advantage)
        text = Text(item.line(room, " ⏎ ") or "(nothing)", style if style else "dim")
        text.append(_ENDED.get(item.ended, ""), "yellow")
        advantage = Text(_number(item.advantage, "+.2f"), f"bold {style}")
        table.add_row(_number(item.reward, ".2f"), advantage, _bar(item.advantage, largest), text)
    console.print(Text(f"\n{title}", "bold"))
    console.print(Text(f"{question}\n"))
    console.print(table)
    console.print(Text(f"\n{wrapped(explanation, min(100, console.width))}\n"))


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
            style = ABOVE if correct else BELOW
            verdict = "right" if correct else "wrong"
            written = one_line(text, 200, " | " if plain else " ⏎ ") or "(nothing)"
            line = Text.assemble(
                (f"  {label:<7}", "dim"), (f"{verdict}  ", f"bold {style}"), printable(written, console)
            )
            console.print(line, soft_wrap=plain)


def _style(advantage: float | None) -> str:
    if not advantage:
        return ""
    return ABOVE if advantage > 0 else BELOW


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def _bar(advantage: float | None, largest: float) -> Text:
    """Return a bar to the right of the middle for an advantage above 0, to the left for one below."""
    length = round(_BAR * abs(advantage or 0.0) / largest)
    above = (advantage or 0.0) > 0
    left = "" if above else "█" * length
    right = "█" * length if above else ""
    return Text.assemble((f"{left:>{_BAR}}", BELOW), ("│", "dim"), (f"{right:<{_BAR}}", ABOVE))
