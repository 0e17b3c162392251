"""The accuracy of `oncurve plan`: `python -m bench.single.plan_accuracy [NAME ...]`.

Plans each run, trains it in a fresh process, and compares the predicted peak with the process's own high-water mark
and the predicted step with the median of the measured ones (without rewards and without the first step). Prints a table
and writes `bench/results/plan_accuracy.json`. Nothing else may run meanwhile: both sides are measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "plan_accuracy.json"
PEAK_TOLERANCE, STEP_TOLERANCE = 0.15, 0.30

RECIPE = """\
[model]
path = "{model}"
[data]
path = "{questions}"
prompt_column = "question"
prompts_per_step = {prompts}
[rollout]
group_size = 8
max_new_tokens = {tokens}
[[rewards]]
kind = "python"
path = "{reward}:reward"
"""

REWARD = """\
def reward(completion: str) -> float:
    return sum(completion.encode()) % 7 / 7
"""

MAKE = """\
import json, sys
from bench.models import model_path, questions
print(model_path(sys.argv[1]))
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.writelines(json.dumps({"question": text}) + "\\n" for text in questions()[:512])
"""


@dataclass(frozen=True)
class Run:
    """A run to plan and to train. `model`: a size of `bench.models`; None: the demo's recipe as it is."""

    name: str
    model: str | None
    prompts: int = 0
    tokens: int = 0
    steps: int = 4
    settings: tuple[str, ...] = ()


RUNS = (
    # Every completion of the demo's model is longer than 16 tokens, so the plan knows their length.
    Run("demo", None, steps=12, settings=("rollout.max_new_tokens=16", "eval.every=0", "data.eval_size=0")),
    Run("6.5M", "6.5M", prompts=4, tokens=128, steps=6),
    Run("6.5M fp32", "6.5M", prompts=4, tokens=128, steps=6, settings=("model.dtype=float32",)),
    Run("494M", "494M", prompts=2, tokens=64, steps=3),
)


def prepare(run: Run, folder: Path) -> Path:
    """Return the run's recipe in `folder`, with its model, which is made where it does not exist."""
    if run.model is None:
        return ROOT / "src" / "oncurve" / "demo" / "recipe.toml"
    questions, reward = folder / "questions.jsonl", folder / "reward.py"
    reward.write_text(REWARD, encoding="utf-8")
    made = call([sys.executable, "-c", MAKE, run.model, str(questions)]).splitlines()[-1]
    recipe = folder / "recipe.toml"
    text = RECIPE.format(model=made, questions=questions, prompts=run.prompts, tokens=run.tokens, reward=reward)
    recipe.write_text(text, encoding="utf-8")
    return recipe


def call(command: list[str], allowed: tuple[int, ...] = (0,)) -> str:
    """Return the output of a command. Exits with the command's own message where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def plan(run: Run, recipe: Path) -> dict[str, Any]:
    """Return the output of `oncurve plan --json`."""
    command = [sys.executable, "-m", "oncurve", "plan", str(recipe), *run.settings, "--json"]
    found: dict[str, Any] = json.loads(call(command, (0, 1)).splitlines()[-1])
    return found


def train(run: Run, recipe: Path, out: Path) -> tuple[int, list[dict[str, float]]]:
    """Return the peak of the process, in bytes, and the metrics of its steps.

    This process stays small on purpose: a child's high-water mark begins at its parent's.
    """
    settings = [*run.settings, f"run.steps={run.steps}"]
    command = [sys.executable, "-m", "oncurve", "train", str(recipe), *settings, "--out", str(out)]
    with (out.parent / "train.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            log.seek(0)
            sys.exit(f"{' '.join(command)}\n{log.read()[-2000:]}")
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return usage.ru_maxrss * 1024, [json.loads(line) for line in lines]


def compare(run: Run) -> dict[str, Any]:
    """Planned and measured figures of one run."""
    with tempfile.TemporaryDirectory() as name:
        recipe = prepare(run, Path(name))
        planned = plan(run, recipe)
        peak, steps = train(run, recipe, Path(name) / "out")
    rest = steps[1:] or steps
    step = statistics.median(metrics["time/step"] - metrics.get("time/reward", 0.0) for metrics in rest)
    phases = sorted({key for metrics in rest for key in metrics if key.startswith("time/") and key != "time/step"})
    return {
        "name": run.name,
        "settings": list(run.settings),
        "peak": {"planned": planned["peak_bytes"], "measured": peak, "ratio": planned["peak_bytes"] / peak},
        "step": {
            "planned": planned["seconds"]["step"],
            "measured": step,
            "ratio": planned["seconds"]["step"] / step,
        },
        "planned_phases": planned["seconds"],
        "measured_phases": {key: statistics.median(metrics.get(key, 0.0) for metrics in rest) for key in phases},
        "completion_length": statistics.mean(metrics["completions/length"] for metrics in rest),
        "planned_memory": planned["memory"],
        "machine": planned["machine"],
    }


def main() -> None:
    """Compare the named runs, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"any of: {', '.join(run.name for run in RUNS)}")
    names = parser.parse_args().names
    if unknown := set(names) - {run.name for run in RUNS}:
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    results = []
    print(
        f"{'run':<12}{'peak planned':>14}{'measured':>12}{'ratio':>8}{'step planned':>15}{'measured':>12}{'ratio':>8}"
    )
    for run in RUNS:
        if names and run.name not in names:
            continue
        found = compare(run)
        results.append(found)
        peak, step = found["peak"], found["step"]
        good = abs(peak["ratio"] - 1) <= PEAK_TOLERANCE and abs(step["ratio"] - 1) <= STEP_TOLERANCE
        print(
            f"{run.name:<12}{peak['planned'] / 1e6:>11,.0f} MB{peak['measured'] / 1e6:>9,.0f} MB{peak['ratio']:>8.2f}"
            f"{step['planned']:>13.2f} s{step['measured']:>10.2f} s{step['ratio']:>8.2f}{'' if good else '   missed'}",
            flush=True,
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"runs": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
