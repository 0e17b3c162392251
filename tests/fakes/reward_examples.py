"""Examples for a reward model: pairs and labelled steps of the built-in task, and a recipe for each."""

import json
from pathlib import Path

from fakes.project import RECIPES
from fakes.solutions import solution
from oncurve.models import tiny
from oncurve.tasks.arithmetic import Problem, check_steps, problems

RECIPE = (RECIPES / "reward_model.toml").read_text(encoding="utf-8")
DATA = {"outcome": "preferences", "process": "steps"}
UPDATES = 8
"""Of a recipe: of 24 problems 6 are held out; 2 passes over 18 in batches of 5, the last one of 3."""


def spoilt(problem: Problem, line: int) -> str:
    """A solution in which a line and all after it are one too high."""
    lines = solution(problem).split("\n")
    for index in range(line % len(lines), len(lines)):
        head, mark, number = lines[index].rpartition("=" if "=" in lines[index] else " ")
        lines[index] = f"{head}{mark}{int(number) + 1}"
    return "\n".join(lines)


def write_examples(folder: Path) -> Path:
    """`outcome.toml` and `process.toml` with their data, on the shipped model."""
    asked = problems("train", 24)
    pairs = [{"prompt": p.prompt, "chosen": solution(p), "rejected": spoilt(p, index)} for index, p in enumerate(asked)]
    steps = []
    for index, each in enumerate(asked):
        text = spoilt(each, index) if index % 3 else solution(each)
        labels = [right for _, right in check_steps(text, each.question)]
        steps.append({"prompt": each.prompt, "completions": text.split("\n"), "labels": labels})
    for name, rows in (("preferences", pairs), ("steps", steps)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind, data in DATA.items():
        (folder / f"{kind}.toml").write_text(RECIPE.format(kind=kind, data=data, model=tiny.path()))
    return folder
