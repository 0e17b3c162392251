"""The demo: judge the shipped model, train it, show one group while that goes on, judge it again."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.text import Text

from oncurve import durable
from oncurve.display import BeforeAfter, Graded, GradedStep, Progress, Screen, say, show_before_after, show_group
from oncurve.evaluate import Evaluation, Interval, paired_difference
from oncurve.report import write_report
from oncurve.run.assemble import Run, assemble
from oncurve.run.directory import RunDirectory
from oncurve.run.loading import load_config
from oncurve.run.plan import plan
from oncurve.run.session import create_directory, free_directory, shown_by, stopped_at
from oncurve.steps import pieces
from oncurve.trainer import StepResult
from oncurve.trainer.observe import peak_memory_bytes
from oncurve.types import Group

__all__ = ["RECIPE", "run_demo"]

RECIPE = Path(__file__).parent / "recipe.toml"
RECIPES = {name: RECIPE.with_name(f"{name}.toml") for name in ("recipe", "process", "ppo")}
PROBLEMS_SHOWN = 3
REWARD_IN_WORDS = {
    "recipe": "reward   1 if the number after #### is right, else 0. Nothing else is ever told to the model.",
    "process": "reward   1 for each line of working that is right, else 0: every step is graded by itself.",
    "ppo": "reward   1 if the number after #### is right, else 0; a critic learns what to expect of each token.",
}


def run_demo(seed: int = 0, out: Path | None = None, as_json: bool = False, kind: str = "recipe") -> str | None:
    """Run the demo; the name of the signal that ended it early, or None.

    `kind`: one of `RECIPES`; "process" judges every line of a completion by itself, "ppo" has a critic.

    With `as_json` a last line of JSON: `accuracy_before`, `accuracy_after` and their 95 % intervals, `gain` (paired,
    in the same problems) with its interval, `seconds` since the process began, `steps`, `peak_memory_bytes`.
    """
    console = Screen()
    out = out or free_directory("demo")
    RunDirectory.check_free(out)
    config, base = load_config(RECIPES[kind], [f"run.seed={seed}"])
    say(console, "oncurve demo: GRPO teaches a tiny language model to work a problem out before it answers.", "")
    with assemble(config, base) as run:
        create_directory(run, out)
        introduce(console, run, REWARD_IN_WORDS[kind])
        before = run.evaluate()
        say(console, f"Before training, the most likely answer is right on {percent(before.greedy_accuracy)}.", "")
        lesson = Lesson(console)
        with Progress(config.run.steps, console) as progress:
            stopped = run.train(lesson, shown_by(progress))
        if stopped is not None:
            write_report(out)
            say(console, "", stopped_at(run, stopped))
            return stopped
        after = run.evaluate()
        run.save_model(out / "model")
        evaluations = {"before": before.to_json(), "after": after.to_json()}
        durable.write_file(out / "evaluation.json", durable.to_json(evaluations))
        write_report(out)
        conclude(console, before, after, out)
        if as_json:
            found = summary(before, after, run.trainer.state.step)
            say(console, json.dumps(found))
    return None


def introduce(console: Console, run: Run, reward: str) -> None:
    """The machine, the model, the task and the plan, in words."""
    memory = run.trainer.environment["memory_bytes"] if run.trainer.environment else None
    size = f", {int(str(memory)) / 2**30:.0f} GB of memory" if memory else ""
    threads = torch.get_num_threads()
    words = [
        f"machine  {processor()}, {threads} thread{'s' if threads != 1 else ''}{size}",
        f"model    {run.facts().parameters:,} parameters, shipped with oncurve; it can already write, not yet reason",
        f"task     word problems, e.g.  {run.eval_prompts[0].text.strip()}",
        reward,
        "plan     " + "\n         ".join(plan(run.config, run.facts())[:1]),
        f"         {run.config.run.steps} steps; then both are judged on {len(run.eval_prompts)} problems held out.",
    ]
    say(console, *words, "")


def processor() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {len(os.sched_getaffinity(0))} cores"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


@dataclass
class Lesson:
    """An observer that shows one real group, once: the first whose completions did not all do equally well."""

    console: Console
    shown: bool = field(default=False)

    def __call__(self, result: StepResult) -> None:
        """Show the step's most instructive group, if none was shown yet."""
        if self.shown:
            return
        best: tuple[int, Group, list[list[float]]] | None = None
        for group, advantages in zip(result.groups, result.advantages, strict=True):
            rewards = [score.reward for score in group.scores if score.valid]
            if advantages is None or max(rewards) == min(rewards):
                continue
            mixed = min(rewards.count(max(rewards)), rewards.count(min(rewards)))
            if best is None or mixed > best[0]:
                best = (mixed, group, advantages.tolist())
        if best is not None:
            self.shown = True
            _, group, numbers = best
            show_group(self.console, group.prompt.text, graded(group, numbers), f"One group of step {result.step}")


def graded(group: Group, advantages: Sequence[Sequence[float]]) -> list[Graded]:
    """A scored group, with the advantages of its tokens, as the display has it."""
    return [
        Graded(
            completion.text,
            score.reward if score.valid else None,
            row[0] if score.valid else None,
            completion.ended,
            tuple(
                GradedStep(text, reward, row[token])
                for text, reward, token in zip(
                    pieces(completion.text, score.step_offsets), score.step_rewards, score.step_ends, strict=False
                )
            ),
        )
        for completion, score, row in zip(group.completions, group.scores, advantages, strict=True)
    ]


def conclude(console: Console, before: Evaluation, after: Evaluation, out: Path) -> None:
    """What training did: accuracy before and after, three problems, where everything is, what to try next."""
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
    """Commands to try after the demo in `out`, in a checkout and without one, each with what it shows."""
    command = command_name()
    return (
        (f"{command} eval {shlex.quote(str(out))}", "pass@k and maj@k of the trained model"),
        (f"{command} demo --seed 1", "another seed, another run"),
        (f"{command} demo --process", "the same, every line of working graded by itself"),
        (f"{command} config explain grpo", "the objective, with the numbers in"),
        (f"{command} train task kl.coef=0.1 --out runs/kl", "change something"),
        (f"{command} config show gsm8k", "a recipe to start from: your own model, data and reward"),
    )


def command_name() -> str:
    """How to call oncurve from here: by name where the shell finds this one, else by the path it was called by."""
    found, called = shutil.which("oncurve"), Path(sys.argv[0])
    if called.name != "oncurve":
        return "python -m oncurve"
    if found is not None and Path(found).resolve() == called.resolve():
        return "oncurve"
    return shlex.quote(os.path.relpath(called))


def three_problems(before: Evaluation, after: Evaluation) -> list[BeforeAfter]:
    """Three held-out problems: two that were learned, and one that is still wrong, where there are such."""
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
    """The demo's figures for machines."""

    assert before.greedy_accuracy is not None
    assert after.greedy_accuracy is not None
    gain = paired_difference(before.greedy_correct, after.greedy_correct)
    return {
        "accuracy_before": before.greedy_accuracy.value,
        "accuracy_before_interval": [before.greedy_accuracy.low, before.greedy_accuracy.high],
        "accuracy_after": after.greedy_accuracy.value,
        "accuracy_after_interval": [after.greedy_accuracy.low, after.greedy_accuracy.high],
        "gain": gain.value,
        "gain_interval": [gain.low, gain.high],
        "problems": after.prompts,
        "seconds": round(time.time() - psutil.Process().create_time(), 2),
        "steps": steps,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def percent(interval: Interval | None) -> str:
    """A share with its interval: `31.2 %  (27.3 to 35.4)`."""
    assert interval is not None
    return f"{100 * interval.value:5.1f} %  (95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f})"
