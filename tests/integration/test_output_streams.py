"""Output never ends a run: readers that leave, full disks, closed descriptors, terminals that hang up."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.killed_runs import QUIET, metrics_of
from fakes.started import start_process
from fakes.tables import table

REWARD = """
def length(completion, answer):
    print("a line from a worker" * 100, flush=True)
    return float(len(completion) % 7)
"""
LENGTH = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
SIGPIPE = "import signal; signal.signal(13, signal.SIG_DFL); from oncurve.cli import main; main()"
WHERE = table("output_streams", "where")
"""What bash does with a command."""


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_a_run_whose_output_goes_nowhere_is_done_all_the_same(project: Path, where: str) -> None:
    Path("reward.py").write_text(REWARD)
    begin = ["-c", SIGPIPE] if "signal" in where else ["-m", "oncurve"]
    words = [sys.executable, *begin, "train", "recipe.toml", LENGTH, "run.steps=2", "--out", "out"]
    ours, theirs = pty.openpty()
    terminal = theirs if "terminal" in where else subprocess.DEVNULL
    environment = {**os.environ, **QUIET, "TERM": "xterm-256color"}
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    bash = ("bash", "-c", f"set -o pipefail; {WHERE[where]}", "bash", *words)
    process = start_process(*bash, env=environment, **streams)
    os.close(theirs)
    os.close(ours)
    assert process.wait(300) == 0
    lines = metrics_of(Path("out"))
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line.get("completions/invalid", 0) == 0 for line in lines)  # the worker's print did not fail, either
    assert Path("out/model/model.safetensors").is_file()
    assert "a line from a worker" not in Path("out/config.toml").read_text() + Path("out/metrics.jsonl").read_text()
