"""`oncurve reward-model label`: a policy's own samples, judged, as files that a reward model is trained on."""

import json
from pathlib import Path

import pytest

from fakes.killed_runs import command
from oncurve.data.judgements import Preferences, StepLabels
from oncurve.models import tiny
from oncurve.tasks.arithmetic import check_steps, is_correct, read_question
from oncurve.types import LabelledSteps, PreferencePair

RECIPE = f"""
[run]
threads = 1

[model]
path = "{tiny.path()}"
dtype = "float32"

[data]
kind = "task"
prompts_per_step = 4

[rollout]
group_size = 4
max_new_tokens = 48

[[rewards]]
kind = "task_steps"

[[rewards]]
kind = "task"
weight = 0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


def test_pairs_have_the_right_one_chosen(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    done = command(["reward-model", "label", recipe, "--judge", "task", "--prompts", "10", "--out", str(out)])
    assert done.returncode == 0, done.stderr
    pairs, held_out = Preferences(path=str(out), eval_fraction=0.0).read()
    assert pairs
    assert not held_out
    assert f"{len(pairs)} pairs in {out}" in done.stdout
    for pair in pairs:
        assert isinstance(pair, PreferencePair)
        answer = read_question(str(pair.prompt)).answer
        assert is_correct(str(pair.chosen), answer)
        assert not is_correct(str(pair.rejected), answer)


def test_steps_are_labelled_as_their_checker_has_it(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    words = ["--kind", "steps", "--judge", "task_steps", "--prompts", "6", "--out", str(out)]
    done = command(["reward-model", "label", recipe, *words])
    assert done.returncode == 0, done.stderr
    examples, _ = StepLabels(path=str(out), eval_fraction=0.0).read()
    assert len(examples) == 24
    for example in examples:
        assert isinstance(example, LabelledSteps)
        truth = check_steps(example.completion, str(example.prompt))
        assert list(zip(example.ends, example.labels, strict=True)) == [(end, float(sound)) for end, sound in truth]


def test_roll_outs_label_steps_for_a_judge_of_answers(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    words = ["--kind", "steps", "--judge", "task", "--roll-outs", "3", "--prompts", "3", "--out", str(out)]
    done = command(["reward-model", "label", recipe, *words])
    assert done.returncode == 0, done.stderr
    examples, _ = StepLabels(path=str(out), eval_fraction=0.0).read()
    assert examples
    for example in examples:
        assert isinstance(example, LabelledSteps)
        assert all(label in (0.0, 1 / 3, 2 / 3, 1.0) for label in example.labels)
        assert example.labels[-1] == float(is_correct(example.completion, read_question(str(example.prompt)).answer))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--judge", "nobody"], "--judge: there is no reward 'nobody'; they are: task_steps, task"),
        ([], "--judge: which of the rewards judges? They are: task_steps, task"),
        (["--kind", "stairs"], '--kind: expected "preferences" or "steps"'),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    recipe: str, tmp_path: Path, words: list[str], said: str
) -> None:
    out = tmp_path / "pairs.jsonl"
    done = command(["reward-model", "label", recipe, *words, "--prompts", "2", "--out", str(out)])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_a_file_that_is_there_is_not_overwritten(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    out.write_text(json.dumps({"chosen": "a", "rejected": "b"}) + "\n")
    done = command(["reward-model", "label", recipe, "--judge", "task", "--out", str(out)])
    assert done.returncode == 2
    assert "exists and is not overwritten" in done.stderr
    assert json.loads(out.read_text()) == {"chosen": "a", "rejected": "b"}
