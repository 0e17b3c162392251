"""What everything that computes does to its process: threads as the settings say, and a watch over the processors."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import oncurve
from fakes.architectures import architecture
from fakes.project import ROWS, lay_out, words_tokenizer
from fakes.tiny_policy import TinyLM
from oncurve.config import RunConfig
from oncurve.display import Progress
from oncurve.machine import contention
from oncurve.machine.contention import NOTICE_WINDOWS, ContentionWatch, ProcessorReading
from oncurve.machine.threads import keep_freed_memory
from oncurve.run.commands.evaluation import evaluate_target
from oncurve.run.session import shown_by
from oncurve.trainer import StepResult
from oncurve.types import Completion, Group, Prompt, Score

THREADS = 2
SMALL: dict[str, Any] = {
    "rollout": {"group_size": 4, "max_new_tokens": 3},
    "data": {"prompts_per_step": 2},
    "run": {"threads": THREADS},
}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    contention.stop()
    yield
    torch.set_num_threads(before)
    contention.stop()


def trained(_: Path) -> None:
    reward = {"kind": "regex", "pattern": "w1"}
    run = oncurve.train(
        model=architecture("llama"), tokenizer=words_tokenizer(), data=ROWS, reward=reward, steps=1, settings=SMALL
    )
    run.close()
    for line in run.metrics:
        assert line.get("time/processor_wait", -1.0) >= 0 or not sys.platform.startswith("linux")


def without_files(_: Path) -> None:
    torch.set_num_threads(THREADS)  # the smallest API has no setting for it
    oncurve.GRPO(TinyLM(), reward_fn=lambda completions, prompts: [0.0] * len(completions))


def evaluated(folder: Path) -> None:
    words = [f"run.threads={THREADS}", "eval.limit=2", f"model.path={folder / 'model'}"]
    evaluate_target(str(folder / "model"), words, recipe=str(folder / "recipe.toml"), n=1)


@pytest.mark.parametrize("compute", [trained, without_files, evaluated])
def test_all_that_computes_takes_the_threads_of_its_settings_and_is_watched(compute: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    compute(lay_out(tmp_path) if compute is evaluated else tmp_path)
    assert torch.get_num_threads() == THREADS
    assert contention._watch.contention.threads == THREADS


RUN: Any = SimpleNamespace(config=RunConfig(), trainer=SimpleNamespace(config=SimpleNamespace(environment={})))
"""What `shown_by` reads of a run."""


def test_the_first_fault_of_a_reward_is_quoted_once_and_on_one_line() -> None:
    out = io.StringIO()
    prompt = Prompt(0, "", (1,))
    with Progress(3, Console(file=out, width=400)) as progress:
        show = shown_by(progress, RUN)
        for step, fault in enumerate((None, "exception: mine: no \x1b[31mfive", "timeout: mine: 3 s"), 1):
            group = Group(prompt, (Completion((1,), "", (0.0,), "eos", 0, 0),), (Score(0.0, fault=fault),))
            show(StepResult(step, {"step": float(step)}, (group,), ()))
    assert [line for line in out.getvalue().splitlines() if "fault" in line] == [
        "step 2: the first fault (1 here): exception: mine: no \\x1b[31mfive"
    ]


def test_a_neighbour_that_stays_is_told_once_above_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ProcessorReading(0.0, {"1": 0.0}, 0.0, 0.0)
    watch = ContentionWatch(2, 2, lambda: start)
    monkeypatch.setattr(contention, "_watch", watch)
    out = io.StringIO()
    with Progress(100, Console(file=out, width=400)) as progress:
        show = shown_by(progress, RUN)
        show(StepResult(1, {"step": 1.0}, (), ()))
        for window in range(1, 2 * NOTICE_WINDOWS):
            watch.observe(ProcessorReading(0.25 * window, {"1": 0.25 * window}, 0.5 * window, 0.25 * window))
        for step in (2, 3):
            show(StepResult(step, {"step": float(step)}, (), ()))
    assert out.getvalue().count("Other processes") == 1
    assert out.getvalue().index("Other processes") > out.getvalue().index("step   1/100")


FAULTS = """
import resource, sys
import torch
from oncurve.machine.threads import keep_freed_memory
done = keep_freed_memory() if sys.argv[1] == "kept" else False
def fill():
    for _ in range(20):
        torch.ones(4 << 20)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    base = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", FAULTS, how], env=base | environment, capture_output=True, check=True)
    done, count = ran.stdout.split()
    return done == b"True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
@pytest.mark.slow
def test_pages_are_not_given_back_and_taken_again():
    (done, kept), (_, given_back) = faults("kept"), faults("as it is", MALLOC_MMAP_THRESHOLD_="1048576")
    assert not done or kept < given_back / 2


def test_settings_of_the_environment_stand(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1048576")
    assert keep_freed_memory() is False
