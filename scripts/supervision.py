"""Outcome and process supervision, and PPO, on the built-in task: steps to a given accuracy.

The demo's recipes, which differ in the advantage and the settings that it needs, train the shipped model on the same
seeds. The script evaluates them greedily on held-out problems every few steps, and compares when they reach an
accuracy.

`--with process_model` compares a process reward model with the step checker: for each seed a model is trained on the
checker's labels of the shipped model's samples, and its step rewards replace the checker's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import oncurve
from oncurve.models import tiny

DEMO = Path(oncurve.__file__).parent / "demo"
RECIPES = {"outcome": DEMO / "recipe.toml", "process": DEMO / "process.toml", "ppo": DEMO / "ppo.toml"}
BASES = {"process": "outcome", "ppo": "outcome", "process_model": "process"}
"""The baseline of each."""

CLOSE_TO_REFERENCE = ["learner.learning_rate=5e-5", "kl.coef=0.5"]
"""For the process reward model and its baseline: a reward model is wrong on samples far from its training data."""

TEMPERATURES = (1.0, 1.5)
LABELLED_PROMPTS = 1024
REWARD_MODEL = """
[data]
kind = "steps"
path = "steps.jsonl"

[reward_model]
kind = "process"
learning_rate = 1e-3
schedule = "cosine"
batch_size = 64
epochs = 4
"""
LEVELS = (0.5, 0.8, 0.95)
METRIC = "eval/accuracy"


def curve(kind: str, seed: int, steps: int, every: int, close: bool) -> dict[int, float]:
    """Held-out accuracy by step of one run, in a process and a folder of its own."""
    words = [f"run.seed={seed}", f"run.steps={steps}", f"eval.every={every}", "checkpoint.every=0"]
    words += CLOSE_TO_REFERENCE if close else []
    words.append("learner.schedule=constant")  # so that the number of steps only decides where a run ends
    with tempfile.TemporaryDirectory() as folder:
        recipe = RECIPES["process" if kind == "process_model" else kind]
        if kind == "process_model":
            path = trained_process_model(seed, Path(folder))
            rewards = f'[{{kind="process_model", path="{path}"}}, {{kind="task", name="truth", weight=0}}]'
            words += [f"rewards={rewards}", "eval.verifier=truth"]
        oncurve_("train", str(recipe), *words, "--out", f"{folder}/run")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    found = (json.loads(line) for line in lines)
    return {int(line["step"]): line[METRIC] for line in found if METRIC in line}


def oncurve_(*words: str) -> None:
    """The command, in a process of its own."""
    subprocess.run([sys.executable, "-m", "oncurve", *words], check=True, capture_output=True, text=True)


def trained_process_model(seed: int, folder: Path) -> Path:
    """The folder of a process reward model, trained on the step checker's labels of the shipped model's samples."""
    recipe, model = str(RECIPES["process"]), tiny.path()
    lines = []
    for heat in TEMPERATURES:
        out = folder / f"{heat}.jsonl"
        told = ["--kind", "steps", "--prompts", str(LABELLED_PROMPTS), "--out", str(out)]
        oncurve_("reward-model", "label", recipe, f"run.seed={seed}", f"rollout.temperature={heat}", *told)
        lines.append(out.read_text())
    (folder / "steps.jsonl").write_text("".join(lines))
    (folder / "rm.toml").write_text(REWARD_MODEL)
    words = [f"run.seed={seed}", f"reward_model.path={model}", "run.threads=1"]
    oncurve_("reward-model", "train", str(folder / "rm.toml"), *words, "--out", str(folder / "rm"))
    return folder / "rm" / "model"


def reached(accuracy: dict[int, float], level: float) -> float:
    """The first evaluated step at which the level was reached; infinite if it never was."""
    return min((step for step, value in accuracy.items() if value >= level), default=float("inf"))


def interval(values: list[float], draws: int = 10000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean, over seeds."""
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def main() -> None:
    """Train both on every seed, and print the steps to each level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps between evaluations")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, of one thread each")
    parser.add_argument(
        "--with", dest="other", default="process", choices=list(BASES), help="compared with its baseline"
    )
    parser.add_argument(
        "--demo-settings", action="store_true", help="with process_model: the demo's learning rate and KL term"
    )
    parser.add_argument("--out", type=Path, help="also write the curves as JSON")
    arguments = parser.parse_args()
    close = arguments.other == "process_model" and not arguments.demo_settings
    curves: dict[str, list[dict[int, float]]] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for kind in (BASES[arguments.other], arguments.other):
            run = partial(curve, kind, steps=arguments.steps, every=arguments.every, close=close)
            curves[kind] = []
            for seed, found in enumerate(pool.map(run, range(arguments.seeds))):
                curves[kind].append(found)
                took = ", ".join(f"{level:.0%} at {reached(found, level):g}" for level in LEVELS)
                print(f"{kind:8} seed {seed}: {took}; at the end {found[max(found)]:.1%}", flush=True)
    name, base = arguments.other, BASES[arguments.other]
    print(f"\n| accuracy | {base}: steps | {name}: steps | {name} - {base} (95 % interval, paired) |")
    print("|---|---|---|---|")
    for level in LEVELS:
        base_steps, other = ([reached(found, level) for found in curves[kind]] for kind in curves)
        difference = [after - before for before, after in zip(base_steps, other, strict=True)]
        low, high = interval(difference)
        print(
            f"| {level:.0%} | {statistics.fmean(base_steps):.1f} | {statistics.fmean(other):.1f} | "
            f"{statistics.fmean(difference):+.1f} ({low:+.1f} to {high:+.1f}) |"
        )
    ends = [[found[max(found)] for found in curves[kind]] for kind in curves]
    low, high = interval([after - before for before, after in zip(*ends, strict=True)])
    means = [statistics.fmean(end) for end in ends]
    print(f"\nat the end: {base} {means[0]:.2%}, {name} {means[1]:.2%} (difference {low:+.2%} to {high:+.2%})")
    if arguments.out:
        arguments.out.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    main()
