"""The demo: evaluate the shipped model, train it, explain one group on the way, evaluate it again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.text import Text

from oncurve import durable
from oncurve.base.errors import command
from oncurve.config import load_config, plan
from oncurve.display import BeforeAfter, Progress, ScoredCompletion, Screen, say, show_before_after, show_group
from oncurve.evaluate import Evaluation, Interval, paired_difference
from oncurve.report import write_report
from oncurve.run import Run, RunDirectory, assemble, create_directory, free_directory, shown_by, stopped_at, watch_of
from oncurve.trainer import StepResult, peak_memory_bytes
from oncurve.types import Group

RECIPE = Path(__file__).parent / "recipe.toml"
PROBLEMS_SHOWN = 3


def run_demo(seed: int = 0, out: Path | None = None, as_json: bool = False) -> str | None:
    """Run the demo; the name of the signal that ended it early, or None.

    `as_json` prints a last line of JSON: `accuracy_before`, `accuracy_after` and their 95 % intervals, `gain` (paired,
    over the same problems) with its interval, `seconds` since the process began, `steps`, `peak_memory_bytes`.
    """
    console = Screen()
    out = out or free_directory("demo")
    RunDirectory.check_free(out)
    config, base = load_config(RECIPE, [f"run.seed={seed}"])
    say(console, "oncurve demo: GRPO trains a tiny language model to work a problem out before it answers.", "")
    with assemble(config, base) as run:
        create_directory(run, out)
        introduce(console, run)
        before = run.recorded(0, run.evaluate())
        say(console, f"Accuracy of greedy answers before training: {percent(before.greedy_accuracy).strip()}", "")
        with Progress(config.run.steps, console) as progress:
            stopped = run.train(Lesson(console), shown_by(progress, watch_of(run)))
        if stopped is not None:
            write_report(out)
            say(console, "", stopped_at(run, stopped))
            return stopped
        after = run.recorded(run.trainer.state.step, run.evaluate())
        run.save_model(out / "model")
        evaluations = {"before": before.to_json(), "after": after.to_json()}
        durable.write_file(out / "evaluation.json", durable.to_json(evaluations))
        write_report(out)
        conclude(console, before, after, out)
        if as_json:
            say(console, json.dumps(summary(before, after, run.trainer.state.step)))
    return None


def introduce(console: Console, run: Run) -> None:
    """The model, the task and the plan, in words."""
    threads = torch.get_num_threads()
    say(
        console,
        f"machine  {threads} thread{'s' if threads != 1 else ''} of {os.cpu_count()} processors",
        f"model    {run.facts().parameters:,} parameters, shipped with oncurve; it writes fluently and reasons badly",
        f"task     word problems, e.g.  {run.eval_prompts[0].text.strip()}",
        "reward   1 if the number after #### is right, else 0. The model gets no other signal.",
        f"plan     {plan(run.config, run.facts())[0]}",
        f"         {run.config.run.steps} steps; accuracy is measured on {len(run.eval_prompts)} held-out problems",
        "",
    )


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
            title = f"One group of step {result.step}"
            show_group(self.console, group.prompt.text, scored(group, numbers.tolist()), title)


def scored(group: Group, advantages: Sequence[Sequence[float]]) -> list[ScoredCompletion]:
    """Return a group with its rewards and the advantages of its first tokens, for the display."""
    return [
        ScoredCompletion(
            completion.text,
            score.reward if score.valid else None,
            row[0] if score.valid else None,
            completion.ended,
        )
        for completion, score, row in zip(group.completions, group.scores, advantages, strict=True)
    ]


def conclude(console: Console, before: Evaluation, after: Evaluation, out: Path) -> None:
    """The result: accuracy before and after, three problems, where the report and the model are, what to try next."""
    gain = paired_difference(before.greedy_correct, after.greedy_correct)
    console.print(Text(f"\nAccuracy on {after.prompts} held-out problems", "bold"))
    say(
        console,
        f"  before  {percent(before.greedy_accuracy)}",
        f"  after   {percent(after.greedy_accuracy)}",
        f"  gain    {100 * gain.value:+5.1f} points  ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}, paired)",
    )
    show_before_after(console, three_problems(before, after))
    tries = what_next(out)
    width = max(len(line) for line, _ in tries)
    say(
        console,
        "",
        f"report   {out / 'report.html'}   every curve, and groups from the first and last steps",
        f"model    {out / 'model'}   (Hugging Face form)",
        "",
        "What to try next",
        *(f"  {line:<{width}}   {what}" for line, what in tries),
    )


def what_next(out: Path) -> tuple[tuple[str, str], ...]:
    """Commands to try after the demo in `out`, each with what it shows."""
    return (
        (command("eval", out), "pass@k and maj@k of the trained model"),
        (command("demo", "--seed", 1), "the same with another seed"),
        (command("config", "explain", "grpo"), "the objective that is maximised, with its numbers"),
        (command("train", "task", "kl.coef=0.1", "--out", "runs/kl"), "a run of your own with one setting changed"),
        (command("config", "show", "gsm8k"), "a recipe to start from: your own model, data and reward"),
    )


def three_problems(before: Evaluation, after: Evaluation) -> list[BeforeAfter]:
    """Three held-out problems: if possible two that were learned, and one that is still wrong."""
    pairs = list(zip(before.greedy, after.greedy, before.greedy_correct, after.greedy_correct, strict=True))
    learned = [pair for pair in pairs if pair[3] and not pair[2]]
    missed = [pair for pair in pairs if not pair[3]]
    rest = [pair for pair in pairs if pair[3] and pair[2]]
    chosen = (learned[:2] + missed[:1] + learned[2:] + rest)[:PROBLEMS_SHOWN]
    return [
        BeforeAfter(
            one.prompt.text,
            str(one.prompt.columns.get("answer", "")),
            one.completions[0].text,
            was_right,
            two.completions[0].text,
            is_right,
        )
        for one, two, was_right, is_right in chosen
    ]


def summary(before: Evaluation, after: Evaluation, steps: int) -> dict[str, Any]:
    """Return the figures of the demo, for `--json`."""
    measured = {
        "accuracy_before": before.greedy_accuracy,
        "accuracy_after": after.greedy_accuracy,
        "gain": paired_difference(before.greedy_correct, after.greedy_correct),
    }
    known = {name: found for name, found in measured.items() if found is not None}
    return {
        **{name: found.value for name, found in known.items()},
        **{f"{name}_interval": [found.low, found.high] for name, found in known.items()},
        "problems": after.prompts,
        "seconds": round(time.time() - psutil.Process().create_time(), 2),
        "steps": steps,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def percent(interval: Interval | None) -> str:
    """Return a share with its interval: `31.2 %  (27.3 to 35.4)`."""
    assert interval is not None
    return f"{100 * interval.value:5.1f} %  (95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f})"
