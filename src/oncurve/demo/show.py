"""The demo: train the shipped model, explain one group on the way, and compare the evaluations before and after.

The group is a real one, and the problems are the same before and after training.
"""

import json
import math
import os
import statistics
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.text import Text

from oncurve.base.errors import command
from oncurve.base.output import visible
from oncurve.config import load_config
from oncurve.display import Screen, is_plain, one_line, printable, say, wrapped
from oncurve.evaluate import Interval, paired_difference, wilson
from oncurve.report import EvaluationFiles, rendered
from oncurve.run import RunDirectory, assemble, create_directory, finish, free_directory
from oncurve.trainer import StepResult, peak_memory_bytes
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


RECIPE = Path(__file__).parent / "recipe.toml"
PROBLEMS_SHOWN = 3

Result = Mapping[str, Any]
"""What became of one held-out problem, as `EvaluationFiles` has it."""


def run_demo(seed: int = 0, out: Path | None = None, as_json: bool = False) -> str | None:
    """Run the demo; the name of the signal that ended it early, or None.

    `as_json` prints a last line of JSON: `accuracy_before`, `accuracy_after` and their 95 % intervals, `gain` (paired,
    over the same problems) with its interval, `seconds` since the process began, `steps`, `peak_memory_bytes`.
    """
    console = Screen()
    out = out or free_directory("demo")
    RunDirectory.check_free(out)
    config, base = load_config(RECIPE, [f"run.seed={seed}", "eval.at_start=true"])
    say(console, "oncurve demo: GRPO trains a tiny language model to work a problem out before it answers.", "")
    with assemble(config, base) as run:
        create_directory(run, out)
        machine = {"threads": torch.get_num_threads(), "processors": os.cpu_count()}
        about = {"parameters": run.facts().parameters, "problem": run.eval_prompts[0].text}
        say(console, *rendered("demo.j2", **machine, **about).splitlines(), "")
        stopped = finish(run, console, Lesson(console))
    if stopped is None:
        steps = config.run.steps
        first, last = (EvaluationFiles(out).read(step) for step in (0, steps))
        pairs = [(one, last[number]) for number, one in first.items()]
        before, after = ([bool(each["right"]) for each in results] for results in zip(*pairs, strict=True))
        figures = {
            "accuracy_before": wilson(sum(before), len(before)),
            "accuracy_after": wilson(sum(after), len(after)),
            "gain": paired_difference(before, after),
        }
        conclude(console, figures, pairs, out)
        if as_json:
            say(console, json.dumps(summary(figures, len(pairs), steps)))
    return stopped


def conclude(
    console: Console, figures: Mapping[str, Interval], pairs: Sequence[tuple[Result, Result]], out: Path
) -> None:
    """The result: accuracy before and after, three problems, what to try next."""
    console.print(Text(f"\nAccuracy on {len(pairs)} held-out problems", "bold"))
    say(console, *rendered("demo_end.j2", f=figures).splitlines())
    show_before_after(console, three_problems(pairs))
    tries = what_next(out)
    width = max(len(line) for line, _ in tries)
    say(console, "", "What to try next", *(f"  {line:<{width}}   {what}" for line, what in tries))


def what_next(out: Path) -> tuple[tuple[str, str], ...]:
    """Commands to try after the demo in `out`, each with what it shows."""
    rows = tomllib.loads(RECIPE.with_name("next.toml").read_text(encoding="utf-8"))["next"]
    return tuple((command(*(out if word == "OUT" else word for word in row["words"])), row["shows"]) for row in rows)


def three_problems(pairs: Sequence[tuple[Result, Result]]) -> list[tuple[Result, Result]]:
    """Three held-out problems: if possible two that were learned, and one that is still wrong."""
    learned = [pair for pair in pairs if pair[1]["right"] and not pair[0]["right"]]
    missed = [pair for pair in pairs if not pair[1]["right"]]
    rest = [pair for pair in pairs if pair[1]["right"] and pair[0]["right"]]
    return (learned[:2] + missed[:1] + learned[2:] + rest)[:PROBLEMS_SHOWN]


def summary(figures: Mapping[str, Interval], problems: int, steps: int) -> dict[str, Any]:
    """Return the figures of the demo, for `--json`."""
    return {
        **{name: found.value for name, found in figures.items()},
        **{f"{name}_interval": [found.low, found.high] for name, found in figures.items()},
        "problems": problems,
        "seconds": round(time.time() - psutil.Process().create_time(), 2),
        "steps": steps,
        "peak_memory_bytes": peak_memory_bytes(),
    }
