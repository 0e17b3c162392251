"""Evaluation before step 1, the best checkpoint, an early end, a limit of time and SIGUSR1: resumed, the same bits."""

import json
import os
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oncurve
from fakes.killed_runs import metrics_of
from fakes.project import ROWS, Command
from fakes.tables import table
from oncurve.durable import read_json
from oncurve.models.loading import ModelConfig
from oncurve.run import resume_any
from oncurve.trainer import HeldOut, StepResult, TrainerState

pytestmark = pytest.mark.slow

REWARD = """
def ones(completion):
    return completion.count("w1") / 10
"""
SETTINGS: dict[str, Any] = table("best_and_limits", "settings")
WORDS: list[str] = table("best_and_limits", "words")
STEPS = 4


@pytest.fixture(scope="module")
def site(laid_out: Path) -> Path:
    """The project, with the run that nothing interrupts in `whole`."""
    (laid_out / "reward.py").write_text(REWARD)
    (laid_out / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        oncurve.train("recipe.toml", out="whole", steps=STEPS, settings=SETTINGS).close()
    return laid_out


@pytest.fixture(autouse=True)
def empty(project: Path) -> None:
    shutil.rmtree("out", ignore_errors=True)


def lines(out: str) -> list[dict[str, Any]]:
    return metrics_of(Path(out), "cluster/")


def checkpoints(out: str) -> dict[str, Any]:
    """The state and the weights of each checkpoint, without times."""
    found = {}
    for path in sorted(Path(out, "checkpoints").glob("step-*")):
        state = read_json(path / "state.json")["trainer"]
        state = {key: value for key, value in state.items() if key not in ("seconds", "metrics_bytes")}
        found[path.name] = state, (path / "learner.safetensors").read_bytes()
    return found


def best_of(found: list[dict[str, float]]) -> int:
    """The step of the first highest evaluation after training began."""
    return int(max(found[1:], key=lambda line: line["eval/reward"])["step"])


def test_the_policy_is_evaluated_before_step_1_and_after_each(command: Command) -> None:
    found = lines("whole")
    assert [line["step"] for line in found] == [0, 1, 2, 3, 4]
    assert {"step", "eval/reward", "eval/length"} <= found[0].keys()
    assert "reward/mean" not in found[0]
    assert max(line["eval/length"] for line in found) == 9  # its own length: rollouts have 6
    assert max(line.get("completions/length_max", 0) for line in found) == 6
    with oncurve.resume("whole") as run:
        assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]


def test_the_best_checkpoint_stays_beside_the_newest_and_is_exported(command: Command) -> None:
    best = best_of(lines("whole"))
    assert 1 < best < STEPS, "the learning rate makes no curve that tells the best from the first and the last"
    assert list(checkpoints("whole")) == [f"step-{step:06d}" for step in (best, STEPS)]
    shutil.rmtree("best", ignore_errors=True)
    said = command("export", "whole", "--step", "best", "--out", "best")
    assert (said.code, f"the policy after step {best}" in said.out) == (0, True)
    evaluated = ["eval", "whole", "--step", "best"], ["eval", "best", "--recipe", "whole/config.toml"]
    found = [json.loads(command(*words, "--n", "2", "--json").out.splitlines()[-1]) for words in evaluated]
    assert [one.pop("model") for one in found] == [f"whole, step {best}", "best"]
    assert found[0] == found[1]
    assert "there is no checkpoint of step 99" in command("eval", "whole", "--step", "99").err
    assert "--step: best is no run" in command("eval", "best", "--recipe", "recipe.toml", "--step", "1").err
    assert (
        f"eval/reward {max(line['eval/reward'] for line in lines('whole')):.4g} at {best}" in command("runs", ".").out
    )


def test_a_stopped_run_keeps_its_best_and_goes_on_to_the_same_bits(command: Command) -> None:
    stop = lambda result: result.step == STEPS - 1 and os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    with oncurve.train("recipe.toml", out="out", steps=STEPS, settings=SETTINGS, on_step=stop) as run:
        assert run.stopped_by == "SIGTERM"
    assert resume_any(Path("out")) is None
    assert lines("out") == lines("whole")
    assert checkpoints("out") == checkpoints("whole")


def test_another_metric_begins_anew_and_a_finished_run_says_what_has_no_effect(command: Command) -> None:
    shutil.copytree("whole", "out")
    said = command("resume", "out", "checkpoint.best=eval/accuracy")
    assert (said.code, "without effect on a finished run: checkpoint.best" in said.out) == (0, True)
    assert command("resume", "out", "checkpoint.best=eval/accuracy", f"run.steps={STEPS + 1}").code == 0
    state, _ = checkpoints("out")[f"step-{STEPS + 1:06d}"]
    assert (state["best"], state["best_step"]) == (0, STEPS + 1)  # no reward of an earlier step
    early = command("resume", "out", "eval.patience=1", f"run.steps={STEPS + 4}")
    assert "ended early after step" in early.out
    again = command("resume", "out", f"run.steps={STEPS + 5}")
    assert "eval.patience = 1 ended it early; to go on: oncurve resume out eval.patience=0" in again.out


def test_a_run_that_never_beats_its_start_ends_says_so_and_has_no_best_checkpoint(command: Command) -> None:
    words = [word for word in WORDS if not word.startswith("checkpoint.best")]
    words += ["checkpoint.best=eval/accuracy", "eval.patience=2", "run.steps=9", "--out", "out"]
    said = command("train", "recipe.toml", *words)
    assert "ended early after step 2: eval/accuracy has not been better than before training in 2" in said.out
    assert "best    eval/accuracy 0 before training: no step was better" in said.out
    assert list(checkpoints("out")) == ["step-000002"]
    assert "eval/accuracy 0 at 0" in command("runs", ".").out
    said = command("export", "out", "--step", "best")
    assert said.code == 2
    assert "no step was better than the start (eval/accuracy 0 before training)" in said.err
    suggested = said.err.strip().rpartition(": oncurve ")[2]
    assert command(*shlex.split(suggested), "--out", "out/exported").code == 0


def test_the_start_is_the_first_value_to_beat_and_a_missing_one_is_none() -> None:
    held_out = HeldOut(every=1, metric="eval/accuracy", patience=2)
    state = held_out.after(TrainerState(), {})
    assert (state.best, held_out.ends(state)) == (None, False)
    state = held_out.after(state, {"eval/accuracy": 0.5})
    for step, value in ((1, 0.4), (2, 0.5)):
        assert not held_out.ends(state)
        state = held_out.after(replace(state, step=step), {"eval/accuracy": value})
    assert (state.best, state.best_step, state.since_best, held_out.ends(state)) == (0.5, 0, 2, True)
    assert held_out.after(replace(state, step=3), {"eval/accuracy": 0.6}).best_step == 3


def test_a_run_ends_early_where_nothing_gets_better_and_goes_on_where_it_is_told_to(command: Command) -> None:
    best = best_of(lines("whole"))
    said = command("train", "recipe.toml", f"run.steps={STEPS + 1}", *WORDS, "eval.patience=1", "--out", "out")
    state = next(reversed(checkpoints("out").values()))[0]
    ended = int(state["step"])
    assert (said.code, state["since_best"], ended <= best + 1) == (0, 1, True)
    assert f"ended early after step {ended}: eval/reward has not been better in 1 evaluation" in said.out
    assert f"out is finished: {ended} steps are done" in command("resume", "out").out
    said = command("resume", "out", "eval.patience=0")
    assert (said.code, "exact: the run goes on to the same numbers" in said.out) == (0, True)
    assert lines("out")[: STEPS + 1] == lines("whole")
    assert lines("out")[-1]["step"] == STEPS + 1
    assert Path("out", f"model-{ended:06d}").is_dir()


def test_a_limit_of_time_ends_a_run_in_order_and_a_resume_has_a_new_one(command: Command) -> None:
    words = ("train", "recipe.toml", f"run.steps={STEPS}", *WORDS, "--out", "out", "--resume-if-there")
    said = command(*words, "run.max_minutes=1e-9")
    assert said.code == 128 + signal.SIGTERM
    assert "stopped by run.max_minutes; to continue after step 1: oncurve resume out" in said.out
    assert command(*words, "run.max_minutes=1e-9").code == 128 + signal.SIGTERM
    assert list(checkpoints("out"))[-1] == "step-000002"
    assert command(*words).code == 0
    assert lines("out") == lines("whole")


def test_sigusr1_makes_a_checkpoint_now_and_changes_no_bit(command: Command) -> None:
    said, before = [], signal.getsignal(signal.SIGUSR1)

    def ask(result: StepResult) -> None:
        said.append(sorted(path.name for path in Path("out/checkpoints").glob("step-*")))
        if result.step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    settings = {**SETTINGS, "checkpoint": {"every": 0}}
    oncurve.train("recipe.toml", out="out", steps=STEPS, settings=settings, on_step=ask).close()
    assert said == [[], [], ["step-000003"], ["step-000003"]]
    assert lines("out") == lines("whole")
    name = f"checkpoints/step-{STEPS:06d}/learner.safetensors"
    assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_sigusr1_while_the_model_loads_counts(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = ModelConfig.build, signal.getsignal(signal.SIGUSR1)

    def asked(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return real(*arguments, **named)

    monkeypatch.setattr(ModelConfig, "build", asked)
    said = command("train", "recipe.toml", "run.steps=2", "checkpoint.every=0", "--out", "out").fine()
    assert "SIGUSR1: nothing is trained now; a run that begins writes a checkpoint after its first step" in said.err
    assert list(checkpoints("out")) == ["step-000001", "step-000002"]
    assert signal.getsignal(signal.SIGUSR1) is before
