"""Does every preset learn? Each trains the shipped model on the built-in task with one small recipe, on several seeds.

    python -m bench.learning.presets [--seeds 2] [--steps 14] [--jobs 1] [--only rloo,opo]
                                     [--out bench/results/presets.json]

The recipe is the demo's with fewer prompts and steps, one thread, and the preset in the place of the default one.
Before and after are greedy rewards on the same held-out problems; the difference is paired over problems, seeds pooled.
Seconds are the processor's for the training steps, without loading and evaluation: on one free core, they are those
on the clock. Runs of the same size that the file holds
already are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.learning.runs import PAGE, ROOT, filled, measured, read
from oncurve.config.layers import PRESETS
from oncurve.evaluate import paired_difference

__all__ = ["table", "words_of"]

RECIPE = ROOT / "src" / "oncurve" / "demo" / "recipe.toml"
OUT = ROOT / "bench" / "results" / "presets.json"

SHAPED = "rewards=[{kind='task', name='right'}, {kind='overlong', buffer=24, weight=0.5}]"
OF_PRESET = {
    "dapo": [SHAPED],
    "gdpo": [SHAPED],
    "grpo_process": ["rewards=[{kind='task_steps', name='right'}]"],
    "ppo": ["critic.learning_rate=1e-3", "critic.warmup_steps=2"],
    "lora": ["learner.learning_rate=2e-3"],
}
"""What a preset needs in addition to the recipe: further rewards, rates of what it trains."""

LEFT_OUT = {"grpo_iterative": "it needs a reward model", "distill": "it needs a teacher"}
"""Presets that this recipe cannot train, and why."""


def common(seed: int, steps: int) -> list[str]:
    """The settings of every run on the built-in task: the size, one thread, no file written on the way."""
    return [
        f"run.seed={seed}",
        f"run.steps={steps}",
        "run.threads=1",
        "rollout.group_size=8",
        "rollout.max_new_tokens=72",
        "data.prompts_per_step=16",
        "learner.warmup_steps=2",
        "eval.every=0",
        "checkpoint.every=0",
    ]


def words_of(preset: str, seed: int, steps: int, problems: int) -> list[str]:
    """The settings of one run, over the demo's recipe."""
    return [f"extends={preset}", *common(seed, steps), f"data.eval_size={problems}", *OF_PRESET.get(preset, [])]


def table(found: dict[str, Any]) -> str:
    """The table of the documentation."""
    lines = [
        "| preset | before | after | difference (95 % interval) | significant | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for preset, runs in sorted(found["runs"].items()):
        before, after = ([bool(x) for run in runs.values() for x in run[when]] for when in ("before", "after"))
        gain = paired_difference(before, after)
        seconds = [run["processor_seconds"] for run in runs.values() if "processor_seconds" in run]
        spent = f"{statistics.median(seconds):.0f}" if seconds else "not measured"
        lines.append(
            f"| `{preset}` | {statistics.mean(before):.3f} | {statistics.mean(after):.3f} | {gain.value:+.3f} "
            f"({gain.low:+.3f} to {gain.high:+.3f}) | {'yes' if gain.low > 0 else '**no**'} | {spent} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--problems", type=int, default=128, help="held-out problems")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results in the file")
    parser.add_argument("--only", help="presets, separated by commas (default: all)")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    found = read(given.out, {"steps": given.steps, "problems": given.problems}, given.fresh)
    names = given.only.split(",") if given.only else sorted(file.stem for file in PRESETS.glob("*.toml"))
    wanted = {
        (name, str(seed)): (RECIPE, words_of(name, seed, given.steps, given.problems))
        for seed in range(given.seeds)
        for name in names
        if name not in LEFT_OUT
    }
    measured(found, wanted, given.out, given.jobs)
    sys.stdout.write(table(found) + "\n")
    if given.out == OUT:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "presets", table(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
