"""`oncurve reward-model label`: a policy's own samples, labelled, as files that a reward model is trained on."""

import os
import re
import signal
from pathlib import Path

import pytest

from fakes.project import RECIPES, Command
from oncurve.durable import AppendLog
from oncurve.models import tiny
from oncurve.reward_models import LabelledSteps, PreferencePair
from oncurve.reward_models.examples import Preferences, StepLabels
from oncurve.tasks.arithmetic import check_steps, is_correct, read_question

RECIPE = (RECIPES / "labels.toml").read_text(encoding="utf-8").format(model=tiny.path())


@pytest.fixture
def label(command: Command) -> Command:
    return lambda *words: command("reward-model", "label", *words).fine()


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


def test_pairs_have_the_right_one_chosen(label: Command, recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    done = label(recipe, "--verifier", "task", "--prompts", "10", "--out", str(out))
    pairs, held_out = Preferences(path=str(out), eval_fraction=0.0).read()
    assert pairs
    assert not held_out
    assert f"{len(pairs)} pairs in {out}" in done.out
    for pair in pairs:
        assert isinstance(pair, PreferencePair)
        answer = read_question(str(pair.prompt)).answer
        assert is_correct(str(pair.chosen), answer)
        assert not is_correct(str(pair.rejected), answer)


def test_steps_are_labelled_as_their_checker_has_it(label: Command, recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    words = ["--kind", "steps", "--verifier", "task_steps", "--prompts", "6", "--out", str(out)]
    label(recipe, *words)
    examples, _ = StepLabels(path=str(out), eval_fraction=0.0).read()
    assert len(examples) == 24
    for example in examples:
        assert isinstance(example, LabelledSteps)
        truth = check_steps(example.completion, str(example.prompt))
        assert list(zip(example.ends, example.labels, strict=True)) == [(end, float(sound)) for end, sound in truth]


def test_a_labelling_that_is_interrupted_says_how_far_it_came(
    command: Command, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(AppendLog, "append", interrupted)
    said = command("reward-model", "label", recipe, "--verifier", "task", "--out", str(tmp_path / "cut"))
    assert said.code == 130
    assert re.search(r"cut has 0 pairs, all those of the first 0 of \d+ prompts", said.err)
    wrong = command("reward-model", "label", recipe, "--verifier", "task", "--continuations", "2", "--out", "x")
    assert (wrong.code, "--continuations: they label steps" in wrong.err) == (2, True)


def test_continuations_label_steps_for_a_verifier_of_answers(label: Command, recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    words = ["--kind", "steps", "--verifier", "task", "--continuations", "3", "--prompts", "3", "--out", str(out)]
    done = label(recipe, *words).out
    examples, _ = StepLabels(path=str(out), eval_fraction=0.0).read()
    assert f"3 of 3 prompts, {len(examples)} completions with labelled steps\n" in done
    assert examples
    for example in examples:
        assert isinstance(example, LabelledSteps)
        assert all(label in (0.0, 1 / 3, 2 / 3, 1.0) for label in example.labels)
        assert example.labels[-1] == float(is_correct(example.completion, read_question(str(example.prompt)).answer))
