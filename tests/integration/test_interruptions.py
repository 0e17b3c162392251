"""Ctrl-C, SIGTERM, grace time, kill -9: what is done is kept, what follows is the same bits, no process is left.

Most of it runs in this process: the reward, in its worker, sends the signal to its parent in the middle of a step.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import oncurve
from fakes.architectures import architecture
from fakes.project import Command, words_tokenizer
from fakes.started import start_process
from fakes.waiting import until
from oncurve.base.errors import RunDirectoryError
from oncurve.durable import StorageError
from oncurve.learner import LocalLearner
from oncurve.learner.optimizer.adamw import SlicedAdamW
from oncurve.learner.optimizer.update import MasterAdamW
from oncurve.rewards import RewardSet
from oncurve.rollout import InProcessEngine
from oncurve.run.session import resume_run
from oncurve.trainer import Recorder, StepResult
from oncurve.trainer.watching.signals import StopSignals

REWARD = """
import os, signal, time

def length(prompts, completions, trainer_state, **columns):
    with open("workers", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if trainer_state.global_step == 1 and os.path.exists("stop"):
        with open("stop") as file:
            run, number, seconds = file.read().split()
        os.remove("stop")
        if int(number):
            os.kill(int(run), int(number))
        time.sleep(float(seconds))
    return [float(len(text) % 7) for text in completions]
"""
PYTHON_REWARD = "rewards=[{kind='python', path='reward.py:length', processes=1, timeout_seconds=60}]"
STEPS = 3


@pytest.fixture(scope="module")
def site(laid_out: Path) -> Path:
    """The project, with the run that nothing interrupts in `whole`."""
    (laid_out / "reward.py").write_text(REWARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        train(laid_out / "whole").close()
    return laid_out


def train(out: Path, **arguments: object) -> oncurve.TrainedRun:
    reward = {"path": "reward.py:length", "processes": 1, "timeout_seconds": 60}
    return oncurve.train("recipe.toml", reward=reward, out=out, **arguments)  # type: ignore[arg-type]


def stop_in_the_second_step(number: int, seconds: float = 0.0) -> None:
    Path("stop").write_text(f"{os.getpid()} {number} {seconds}")


def checkpoints(out: str) -> list[str]:
    return sorted(path.name for path in Path(out, "checkpoints").glob("step-*"))


def equals_whole(out: str) -> bool:
    name = f"checkpoints/step-{STEPS:06d}/learner.safetensors"
    return Path(out, name).read_bytes() == Path("whole", name).read_bytes()


def workers_go() -> None:
    """Wait until none of the processes that ever scored is alive."""
    pids = {int(line) for line in Path("workers").read_text().split()}
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_in_a_step_lets_it_end_saves_it_and_says_how_to_go_on(
    command: Command, number: signal.Signals
) -> None:
    out = f"after-{number.name}"
    stop_in_the_second_step(number)
    said = command("train", "recipe.toml", PYTHON_REWARD, "--out", out)
    assert said.code == 128 + number
    assert f"{number.name}: finishing this step" in said.err
    assert f"stopped by {number.name}; to continue after step 2: oncurve resume {out}" in said.out
    assert checkpoints(out) == ["step-000002"]
    assert Path(out, "report.html").exists()
    assert not Path(out, "model").exists()
    workers_go()
    again = command("resume", out)
    assert (again.code, "2 of 3 steps are done" in again.out) == (0, True)
    assert equals_whole(out)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("every", [0, 1], ids=["no checkpoint", "a checkpoint a step"])
def test_a_step_that_outlasts_the_grace_time_is_abandoned_and_done_again(command: Command, every: int) -> None:
    out = f"abandoned-{every}"
    stop_in_the_second_step(signal.SIGINT, seconds=300)
    settings = ["run.grace_seconds=0.2", f"checkpoint.every={every}"]
    said = command("train", "recipe.toml", PYTHON_REWARD, *settings, "--out", out)
    assert said.code == 130
    assert checkpoints(out) == ["step-000001"]  # nothing had been learned from the second
    assert "to continue after step 1: " in said.out
    workers_go()
    assert command("resume", out).code == 0
    assert equals_whole(out)


def test_without_a_directory_a_signal_ends_the_run_all_the_same(project: Path) -> None:
    run = oncurve.train("recipe.toml", on_step=lambda result: os.kill(os.getpid(), signal.SIGINT))
    run.close()
    assert (run.stopped_by, len(run.metrics), run.directory) == ("SIGINT", 1, None)


def in_a_destructor(act: Callable[[], object]) -> None:
    """Call `act` where Python drops what it raises, whichever bytecode its signal meets."""

    class Dying:
        def __del__(self) -> None:
            act()
            time.sleep(0.2)

    Dying()


@pytest.mark.parametrize("where", [lambda act: act(), in_a_destructor], ids=["at once", "in a destructor"])
def test_ctrl_c_before_training_is_a_sentence_and_leaves_nothing(
    command: Command, monkeypatch: pytest.MonkeyPatch, where: Callable[[Callable[[], object]], None]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        where(lambda: os.kill(os.getpid(), signal.SIGINT))
        time.sleep(300)

    monkeypatch.setattr("oncurve.models.loading.weights.ModelConfig.build", interrupted)
    said = command("train", "recipe.toml", "--out", "early")
    assert (said.code, said.err) == (130, "oncurve: stopped by SIGINT\n")
    assert not Path("early").exists()


def test_ctrl_c_while_the_model_is_written_names_the_command_that_writes_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("oncurve.run.assembly.Run.save_model", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        said = command("train", "recipe.toml", "--out", "late")
    assert (said.code, "not the model; this writes it: oncurve resume late" in said.err) == (130, True)
    assert command("resume", "late").code == 0
    assert Path("late/model").is_dir()


IMPORTED = """\
try:
    import os, signal
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    raise ImportError("a package is missing")  # as transformers does
"""


def test_ctrl_c_in_an_import_ends_the_command_whatever_the_library_makes_of_it(project: Path) -> None:
    Path("swallowing.py").write_text(IMPORTED)
    lines = "from oncurve.base.output import own_process\nwith own_process():\n    import swallowing\n"
    process = start_process(sys.executable, "-c", lines, stderr=subprocess.PIPE)
    assert process.communicate(timeout=60)[1] == b"oncurve: stopped by SIGINT\n"
    assert process.returncode == 130


def test_a_step_whose_end_comes_in_a_destructor_is_abandoned(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        in_a_destructor(lambda: time.sleep(1))
        time.sleep(300)

    monkeypatch.setattr(InProcessEngine, "generate", stopped)
    with train(Path("given-up"), settings={"run.grace_seconds": 0.1}) as run:
        assert (run.stopped_by, len(run.metrics)) == ("SIGINT", 0)


class DeviceError(RuntimeError):
    """What a device raises in a backward pass."""


def failing(owner: object, name: str, error: BaseException, patch: pytest.MonkeyPatch, after: bool = False) -> None:
    """`owner.name` raises in its second call; `after` it has done its work."""
    real, calls = getattr(owner, name), [0]

    def method(*arguments: object, **named: object) -> object:
        calls[0] += 1
        found = real(*arguments, **named) if after or calls[0] != 2 else None
        if calls[0] == 2:
            raise error
        return found

    patch.setattr(owner, name, method)


BROKEN = {
    "a disk that is full for rollouts": (Recorder, "rollouts", StorageError("full")),
    "a backward pass": (LocalLearner, "_backward", DeviceError("CUDA out of memory?")),
    "an interrupt": (InProcessEngine, "generate", KeyboardInterrupt()),
    "an exit": (RewardSet, "begin", SystemExit(3)),
    "inside an optimizer's step": (SlicedAdamW, "step", MemoryError("no memory")),
    "behind an optimizer's step": (MasterAdamW, "step", KeyboardInterrupt()),
    "before its metrics are kept": (Recorder, "metrics", StorageError("full")),
}
HALF_DONE = ("inside an optimizer's step", "behind an optimizer's step", "before its metrics are kept")
"""Errors while weights change, after which no checkpoint is written."""


@pytest.mark.parametrize("where", BROKEN)
def test_an_error_leaves_the_last_finished_step_in_a_checkpoint_and_never_what_is_half_done(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    owner, name, error = BROKEN[where]
    out = where.replace(" ", "-").replace("'", "")
    with monkeypatch.context() as patch:
        failing(owner, name, error, patch, after=where.startswith("behind"))
        with pytest.raises(type(error)) as raised:
            train(Path(out))
    assert checkpoints(out) == ([] if where in HALF_DONE else ["step-000001"])
    if where not in HALF_DONE:
        advice = f"stopped by {type(error).__name__}; to continue after step 1: oncurve resume {out}"
        assert raised.value.__notes__ == [advice]
        assert "to continue" not in capfd.readouterr().out
    assert resume_run(Path(out)) is None
    assert equals_whole(out)


def test_a_checkpoint_leaves_the_page_of_the_run_and_a_command_writes_it(command: Command) -> None:
    page, seen = Path("paged/report.html"), list[bool]()
    train(Path("paged"), settings={"checkpoint.every": 1}, on_step=lambda _: seen.append(page.is_file())).close()
    assert seen == [False] + [True] * (STEPS - 1)  # the observers of step 1 come before its page
    before = {path: path.stat().st_mtime_ns for path in page.parent.rglob("*") if path.is_file() and path != page}
    page.unlink()
    said = command("report", "paged")
    assert (said.code, said.out) == (0, "paged/report.html\n")
    assert f"step {STEPS} of {STEPS}" in page.read_text()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert command("report", "nowhere").code == 2


def test_a_failed_run_says_on_the_command_line_how_to_go_on(command: Command) -> None:
    Path("strict.py").write_text(
        "def length(completions, trainer_state, **columns):\n"
        "    assert trainer_state.global_step != 1, 'step 2 is one too many'\n"
        "    return [float(len(text) % 7) for text in completions]\n"
    )
    strict = "rewards=[{kind='python', path='strict.py:length', processes=1, on_error='raise'}]"
    said = command("train", "recipe.toml", strict, "--out", "my run")
    assert said.code == 2
    assert "step 2 is one too many" in said.err
    assert said.err.endswith("\nstopped by RewardError; to continue after step 1: oncurve resume 'my run'\n")
    Path("strict.py").write_text(Path("strict.py").read_text().replace("!= 1", "!= 7"))
    again = command("resume", "my run")
    assert (again.code, "strict.py: was" in again.out) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_second_signal_leaves_a_process_that_only_calls_us_alone(project: Path, number: signal.Signals) -> None:
    """Were it ended, so would be this test."""
    out = f"twice-{number.name}"

    def twice(result: StepResult) -> None:
        if result.step == 1:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt if number is signal.SIGINT else SystemExit):
        train(Path(out), on_step=twice)
    with oncurve.resume(out):
        pass
    assert equals_whole(out)


def test_a_signal_between_two_steps_loses_nothing_and_the_run_has_let_go_of_its_directory(project: Path) -> None:
    run = train(Path("stopped"), on_step=lambda result: result.step == 2 and os.kill(os.getpid(), signal.SIGTERM))
    assert (run.stopped_by, len(run.metrics), checkpoints("stopped")) == ("SIGTERM", 2, ["step-000002"])
    with oncurve.resume("stopped") as again:  # the first is not closed
        assert (again.stopped_by, again.directory) == (None, Path("stopped"))
    assert equals_whole("stopped")
    run.save("saved")
    with pytest.raises(RunDirectoryError, match="saved exists and is not empty; nothing is overwritten"):
        run.save("saved")
    run.close()
    assert Path("saved/model.safetensors").is_file()


def test_what_was_given_as_an_object_is_named_where_the_run_can_go_on(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = lambda result: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731 - as a notebook has it
    given = {"model": architecture("llama"), "tokenizer": words_tokenizer(), "reward": lambda completion: 1.0}
    with oncurve.train("recipe.toml", **given, out="objects", on_step=stop) as run:
        assert run.stopped_by == "SIGINT"
    hint = "oncurve.resume('objects', model=model, tokenizer=tokenizer, reward=reward)"
    assert hint in capfd.readouterr().out
    with oncurve.resume("objects", **given) as again:
        assert len(again.metrics) == STEPS


def started(*arguments: str) -> "subprocess.Popen[bytes]":
    words = (sys.executable, "-m", "oncurve", *arguments)
    return start_process(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_second_signal_ends_at_once(command: Command) -> None:
    stop_in_the_second_step(0, seconds=300)
    process = started("train", "recipe.toml", PYTHON_REWARD, "checkpoint.every=1", "--out", "twice")
    until(lambda: not Path("stop").exists(), 300.0)  # the reward has begun its long sleep in the second step
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)  # far less than the step takes
    assert process.returncode == 130
    assert b"ended at once" in errors
    assert b"Traceback" not in errors
    workers_go()
    assert command("resume", "twice").code == 0
    assert equals_whole("twice")


@pytest.mark.slow
@pytest.mark.parametrize("after_seconds", [0.0, 0.4, 1.0, 2.0])
def test_ctrl_c_at_any_time_of_the_start_shows_no_traceback(command: Command, after_seconds: float) -> None:
    process = started("train", "recipe.toml", "run.steps=100000", "--out", f"start-{after_seconds}")
    maps = Path(f"/proc/{process.pid}/maps")
    until(lambda: "libtorch_cpu" in maps.read_text())  # the command is at work, and no longer Python itself
    time.sleep(after_seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors


def test_a_signal_that_the_shell_told_us_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals(grace_seconds=1) as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.requested is None
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
