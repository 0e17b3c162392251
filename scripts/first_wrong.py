"""A process reward model on traces whose first wrong step is known: does it find it? `--help`: options.

The traces (BIG-Bench-Mistake's form: input, steps, mistake_index) are taken in folds by question; a model is trained on
all folds but one, by `oncurve reward-model train`, and judged on that one. Beside it stands what saying the training
traces' most frequent place finds. The language model it begins from reads as many tokens as the longest trace has: its
positions are counted further, which rotary ones allow.
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

from oncurve.data.judgements import StepLabels
from oncurve.evaluate.first_wrong import find_first_wrong, first_wrong, judge_first_wrong
from oncurve.models.judges import load_classifier
from oncurve.randomness import permutation
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
    """The rows in `count` parts; those of one question are in one part."""
    questions = sorted({row["input"] for row in rows})
    place = {
        questions[index]: number % count for number, index in enumerate(permutation(0, 0, len(questions)).tolist())
    }
    return [[row for row in rows if place[row["input"]] == fold] for fold in range(count)]


def longer(model: Path, into: Path, positions: int) -> None:
    """A copy of a model that counts `positions`."""
    shutil.copytree(model, into)
    config = json.loads((into / "config.json").read_text())
    config["max_position_embeddings"] = max(positions, config["max_position_embeddings"])
    (into / "config.json").write_text(json.dumps(config))


def judged(
    folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], words: list[str]
) -> list[list[float]]:
    """How likely each step of the test traces is right, by a model trained on the others."""
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rm.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "oncurve", "reward-model", "train", str(folder / "rm.toml"), *words]
    subprocess.run([*command, "--out", str(folder / "rm")], check=True, capture_output=True, text=True)
    classifier = load_classifier(str(folder / "rm" / "model"), "process")
    examples = examples_of(folder / "test.jsonl")
    return classifier.judge([classifier.encode(each.prompt, each.completion, each.ends) for each in examples])


def examples_of(path: Path) -> list[LabelledSteps]:
    """The traces of a file."""
    columns = {"prompt_column": "input", "steps_column": "steps", "labels_column": "mistake_index"}
    found, _ = StepLabels(path=str(path), eval_fraction=0.0, **columns).read()
    return [example for example in found if isinstance(example, LabelledSteps)]


def main() -> None:
    """Train and judge a model a fold, and print what all held-out traces together say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="a JSONL file")
    parser.add_argument("--model", type=Path, required=True, help="the language model to begin from")
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
            likelihoods = judged(folder, train, test, arguments.words)
            examples = examples_of(folder / "test.jsonl")
        held_out += examples
        right += likelihoods
        hits = sum(find_first_wrong(p) == first_wrong(e.labels) for p, e in zip(likelihoods, examples, strict=True))
        print(f"fold {number}: {hits} of {len(examples)}", flush=True)
    print(judge_first_wrong(held_out, held_out, right).text())


if __name__ == "__main__":
    main()
