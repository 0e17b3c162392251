"""A run whose folder is deleted, moved or replaced ends at once, says so, and writes nothing at the place."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import oncurve
from fakes.project import Said
from oncurve.base.errors import LostFileError
from oncurve.trainer import StepResult

Command = Callable[..., Said]

REWARD = """
import os, shutil

def length(completions, **columns):
    with open("calls", "a") as file:
        file.write(".")
    with open("lose") as file:
        call, how = file.read().split()
    if os.path.getsize("calls") == int(call):
        os.rename("out", "elsewhere")
        if how == "replaced":
            shutil.copytree("elsewhere", "out")
        if how == "deleted":
            shutil.rmtree("elsewhere")
    return [float(len(text) % 7) for text in completions]
"""
RUN = ["recipe.toml", "rewards=[{kind='python', path='reward.py:length', processes=1}]", "--out", "out"]
EVALUATED = ["data.eval_fraction=0.3", "eval.every=3", "eval.at_start=true", "checkpoint.every=1"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("call", "how", "since"),
    [
        (2, "deleted", "it was opened"),  # in the evaluation before step 1; the trial of the reward is the first call
        (4, "moved", "step 1 was written"),
        (5, "replaced", "step 2 was written"),
        (6, "deleted", "step 2 was written"),  # in the evaluation after the last step
    ],
)
def test_a_folder_that_is_lost_in_a_step_or_an_evaluation_ends_the_run_within_it(
    command: Command, call: int, how: str, since: str
) -> None:
    Path("reward.py").write_text(REWARD)
    Path("lose").write_text(f"{call} {how}")
    said = command("train", *RUN, *EVALUATED)
    assert said.code == 1
    assert said.err.startswith("oncurve: out: the folder, or metrics.jsonl in it, was deleted, moved or replaced by")
    assert f"after {since}" in said.err
    assert "resume out" not in said.out + said.err
    assert os.path.getsize("calls") <= call + (call == 5)  # no step begins; that after which one is due is evaluated
    assert Path("out").exists() == (how == "replaced")
    if how != "deleted":
        Path("lose").write_text("0 never")
        assert command("resume", "elsewhere").code == 0
    if how == "replaced":
        assert "model/config.json" not in contents(Path("out"))


def test_a_folder_that_is_lost_in_a_resume_or_after_the_last_step_is_missed(command: Command) -> None:
    def lose(result: StepResult) -> None:
        if result.step == 3:
            shutil.rmtree("out")

    assert command("train", "recipe.toml", "run.steps=2", "--out", "out").code == 0
    with pytest.raises(LostFileError, match="after step 3 was written"):
        oncurve.resume("out", settings={"run.steps": 3}, on_step=lose)
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_run_with_other_processes_ends_when_its_folder_is_emptied(command: Command) -> None:
    def lose(result: StepResult) -> None:
        for entry in Path("out").glob("[!.]*"):  # as `rm -r out/*` does
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    seen = list[int]()
    settings = {"run.steps": 9, "cluster": {"kind": "host", "rollout_workers": 2, "learner_ranks": 2, "lag": 1}}
    with pytest.raises(LostFileError, match="after step 1 was written"):
        oncurve.train(
            "recipe.toml", out="out", settings=settings, on_step=lambda result: (seen.append(result.step), lose(result))
        )
    assert seen == [1]
    assert [entry.name for entry in Path("out").iterdir()] == [".lock"]
