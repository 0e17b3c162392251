"""GRPO explained on a real group, and its effect shown on the same problems before and after training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from oncurve.base.output import visible
from oncurve.display import is_plain, one_line, printable, wrapped
from oncurve.report import rendered
from oncurve.trainer import StepResult
from oncurve.types import Group

ABOVE, BELOW = "cyan", "dark_orange"  # colour-blind readers can tell them apart, on light and on dark


@dataclass
class Lesson:
    """An observer that shows one real group, once: the most mixed one of the first step with differing rewards."""

    console: Console
    shown: bool = field(default=False)

    def __call__(self, result: StepResult) -> None:
        """Show the step's most instructive group, if none was shown yet."""
        if self.shown:
            return
        mixed = [
            (min(rewards.count(max(rewards)), rewards.count(min(rewards))), group, advantages)
            for group, advantages in zip(result.groups, result.advantages, strict=True)
            if (rewards := [score.reward for score in group.scores if score.valid]) and max(rewards) > min(rewards)
        ]
        if mixed:
            self.shown = True
            _, group, numbers = max(mixed, key=itemgetter(0))
            assert numbers is not None
            show_group(self.console, group, [row[0] for row in numbers.tolist()], f"One group of step {result.step}")


def explain_group(known: Sequence[tuple[float, float]], asked: int) -> str:
    """Return what GRPO computes for a group, whose rewards differ, in words and with its numbers.

    known   reward and advantage of each valid completion
    asked   the number of completions
    """
    rewards = [reward for reward, _ in known]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    numbers = {"asked": asked, "count": len(known), "mean": mean, "deviation": deviation}
    return rendered("lesson.j2", worked=(max(known), min(known)), **numbers)


def show_group(console: Console, group: Group, advantages: Sequence[float], title: str) -> None:
    """Print a real group, best first, with rewards and advantages, and an explanation.

    In colour on a terminal, plain elsewhere. Control characters in texts are written as escapes.
    """
    plain, width = is_plain(console), min(100, console.width)
    lines = [
        Text(f"\n{title}", "" if plain else "bold"),
        Text(wrapped(visible(group.prompt.text).strip(), width, "  ")),
    ]
    lines.append(Text("\n  reward  advantage  completion"))
    items = list(zip(group.completions, group.scores, advantages, strict=True))
    for completion, score, advantage in sorted(items, key=lambda it: it[2] if it[1].valid else -math.inf, reverse=True):
        style = "" if plain or not (score.valid and advantage) else ABOVE if advantage > 0 else BELOW
        text = one_line(completion.text, 110, " | " if plain else " ⏎ ") or "(nothing)"
        numbers = f"  {score.reward:>6.2f}  {advantage:>+9.2f}  " if score.valid else f"  {'none':>6}  {'none':>9}  "
        lines.append(Text.assemble(numbers, (text, style), " (cut off)" if completion.ended == "length" else ""))
    known = [(score.reward, advantage) for _, score, advantage in items if score.valid]
    for line in (*lines, Text(f"\n{wrapped(explain_group(known, len(items)), width, '  ')}\n")):
        line.plain = printable(line.plain, console)
        console.print(line, soft_wrap=True)


def show_before_after(console: Console, problems: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Print the policy's replies to the same problems before and after training, as `EvaluationFiles` has them."""
    plain = is_plain(console)
    for number, (before, after) in enumerate(problems, start=1):
        console.print(Text(f"\nProblem {number}", "bold"))
        asked = f"{visible(before['prompt']).strip()}  (answer: {visible(before['answer'] or '')})"
        console.print(Text(printable(asked, console)), soft_wrap=plain)
        for label, found in (("before", before), ("after", after)):
            style, verdict = (ABOVE, "right") if found["right"] else (BELOW, "wrong")
            written = one_line(found["reply"], 200, " | " if plain else " ⏎ ") or "(nothing)"
            line = Text.assemble(
                (f"  {label:<7}", "dim"), (f"{verdict}  ", f"bold {style}"), printable(written, console)
            )
            console.print(line, soft_wrap=plain)
