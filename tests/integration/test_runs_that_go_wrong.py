"""Runs that go wrong on the way, or whose folder is lost: what is said, what is left, and how they go on."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import oncurve
from fakes.project import Command
from fakes.tables import table
from oncurve.base.errors import LostFileError
from oncurve.run.directory.folder import RunDirectory
from oncurve.trainer import StepResult

LENGTH = "rewards=[{kind='python', path='reward.py:length', processes=1}]"


def weights(out: str) -> bytes:
    return Path(out, "checkpoints/step-000003/learner.safetensors").read_bytes()


def test_a_run_then_what_is_done_with_it_say_what_they_did(command: Command) -> None:
    """Resumed when it is finished, trained at its place, held by another process, without its model, damaged."""
    said = command("train", "recipe.toml", "--out", "out")
    assert (said.code, said.err) == (0, "")
    assert "step 3/3" in said.out
    files = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.name != ".lock"}
    again = command("resume", "out")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("out is finished: all 3 steps are done")
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.name != ".lock"} == files
    taken = command("train", "recipe.toml", "--out", "out")
    assert (taken.code, "oncurve resume out" in taken.err) == (2, True)
    held = RunDirectory.open(Path("out"))
    refusal = command("resume", "out")
    held.close()
    assert (refusal.code, "is in use by another oncurve run" in refusal.err) == (2, True)
    model = Path("out/model/model.safetensors").read_bytes()
    Path("out/model/model.safetensors").write_bytes(b"damaged")
    assert command("resume", "out").code == 0
    assert Path("out/model/model.safetensors").read_bytes() == model
    Path("out/checkpoints/step-000003/learner.safetensors").write_bytes(weights("out")[:-1] + b"?")
    damaged = command("resume", "out")
    assert (damaged.code, "Traceback" in damaged.err) == (1, False)
    assert "step-000003 is damaged" in damaged.err
    assert "oncurve train out/config.toml --out ANOTHER" in damaged.err


def test_a_bare_model_is_evaluated_by_a_recipe(command: Command) -> None:
    said = command("eval", "model", "--recipe", "recipe.toml", "--n", "2", "--limit", "3", "--json").fine()
    assert "prompts of the training data" in said.out
    assert json.loads(said.out.splitlines()[-1])["prompts"] == 3


BLOWN_UP = table("runs_that_go_wrong", "blown_up")


@pytest.mark.parametrize("words", BLOWN_UP)
def test_a_run_that_blows_up_stops_with_a_diagnosis_of_one_screen(command: Command, words: str) -> None:
    said = command("train", "recipe.toml", "run.steps=9", *BLOWN_UP[words], "--out", "out")
    assert (said.code, "Traceback" in said.err) == (1, False)
    assert words in said.err
    assert "a smaller learner.learning_rate" in said.err
    assert len(said.err.splitlines()) < 20
    if "skipped" in words:
        assert len(list(Path("out/incidents").iterdir())) == 3


def test_rewards_that_all_fail_stop_the_run_and_show_the_first_fault(command: Command) -> None:
    tried = "    if 'know' in completion or 'answer' in completion:\n        return 0.0\n"  # before the model loads
    Path("reward.py").write_text(f"def length(completion):\n{tried}    raise ValueError('of mine')\n")
    said = command("train", "recipe.toml", LENGTH, "--out", "out")
    assert said.code == 1
    assert "all rewards of 8 completions have a fault (8 exception)" in said.err
    assert "ValueError: of mine" in said.err
    assert "oncurve/" not in said.err  # of the traceback only what is the user's


def test_what_a_reward_prints_stays_out_of_the_output_and_what_it_asks_is_a_fault(command: Command) -> None:
    Path("reward.py").write_text("def length(completion):\n    print('noise')\n    return len(input())\n")
    said = command("train", "recipe.toml", LENGTH, "--out", "out")
    assert (said.code, "EOFError" in said.err, "noise" in said.out) == (2, True, False)  # by its trial


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_plan_can_be_printed_whatever_the_terminal_can_write(
    command: Command, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(sys, "stdout", open("stdout", "w", encoding=encoding))  # noqa: SIM115 - closed below
    said = command("config", "explain", "grpo")
    sys.stdout.close()
    assert said.code == 0
    assert "min(" in Path("stdout").read_text(encoding=encoding, errors="replace")


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


@pytest.mark.parametrize(("call", "how", "since"), table("runs_that_go_wrong", "lost_folders"))
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
