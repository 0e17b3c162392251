"""How often a process reward model finds the first wrong step, on traces in which it is known.

The traces (in BIG-Bench-Mistake's form: input, steps, mistake_index) are split into folds by question. For each fold a
model is trained on the others, by `oncurve reward-model train`, and evaluated on it. The baseline predicts the training
traces' most frequent position. The model's maximum number of positions is raised to the longest trace, which rotary
embeddings allow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oncurve.evaluate.first_wrong import find_first_wrong, first_wrong, score_first_wrong
from oncurve.models.classifiers.load import load_classifier
from oncurve.randomness import permutation
from oncurve.reward_models.examples import StepLabels
from oncurve.types import LabelledSteps

RECIPE = """
[data]
kind = "steps"
path = "train.jsonl"
eval_path = "test.jsonl"
prompt_column = "input"
steps_column = "steps"
labels_column = "mistake_index"

[reward_model]
kind = "process"
path = "model"
schedule = "cosine"
"""


def folds_of(rows: list[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    """The rows in `count` folds; rows of one question are in one fold."""
    questions = sorted({row["input"] for row in rows})
    fold_of = {
        questions[index]: number % count for number, index in enumerate(permutation(0, 0, len(questions)).tolist())
    }
    return [[row for row in rows if fold_of[row["input"]] == fold] for fold in range(count)]


def longer(model: Path, into: Path, positions: int) -> None:
    """Copy a model, with `positions` as its maximum number of positions."""
    shutil.copytree(model, into)
    config = json.loads((into / "config.json").read_text())
    config["max_position_embeddings"] = max(positions, config["max_position_embeddings"])
    (into / "config.json").write_text(json.dumps(config))


def probabilities(
    folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], words: list[str]
) -> list[list[float]]:
    """The probability that each step of the test traces is correct, by a model trained on the other traces."""
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rm.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "oncurve", "reward-model", "train", str(folder / "rm.toml"), *words]
    subprocess.run([*command, "--out", str(folder / "rm")], check=True, capture_output=True, text=True)
    classifier = load_classifier(str(folder / "rm" / "model"), "process")
    examples = examples_of(folder / "test.jsonl")
    return classifier.score([classifier.encode(each.prompt, each.completion, each.ends) for each in examples])


def examples_of(path: Path) -> list[LabelledSteps]:
    """The traces of a file."""
    columns = {"prompt_column": "input", "steps_column": "steps", "labels_column": "mistake_index"}
    found, _ = StepLabels(path=str(path), eval_fraction=0.0, **columns).read()
    return [example for example in found if isinstance(example, LabelledSteps)]


def main() -> None:
    """Train and evaluate a model per fold, and print the result over all held-out traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="a JSONL file")
    parser.add_argument("--model", type=Path, required=True, help="the language model to train from")
    parser.add_argument("--positions", type=int, default=2048, help="the longest trace, in tokens")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("words", nargs="*", metavar="SECTION.KEY=VALUE", help="settings of the training")
    arguments = parser.parse_intermixed_args()
    rows = [json.loads(line) for line in arguments.traces.read_text().splitlines()]
    folds = folds_of(rows, arguments.folds)
    held_out: list[LabelledSteps] = []
    right: list[list[float]] = []
    for number, test in enumerate(folds):
        train = [row for other in folds if other is not test for row in other]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            longer(arguments.model, folder / "model", arguments.positions)
            likelihoods = probabilities(folder, train, test, arguments.words)
            examples = examples_of(folder / "test.jsonl")
        held_out += examples
        right += likelihoods
        hits = sum(find_first_wrong(p) == first_wrong(e.labels) for p, e in zip(likelihoods, examples, strict=True))
        print(f"fold {number}: {hits} of {len(examples)}", flush=True)
    print(score_first_wrong(held_out, held_out, right).text())


if __name__ == "__main__":
    main()
