"""Output never ends a run: readers that leave, full disks, closed descriptors, terminals that hang up.

One process imports everything and forks a child for each case: a process of its own would take seconds to start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.project import lay_out

pytestmark = pytest.mark.slow

RUNNER = """
import json, os, pty, signal, sys
from pathlib import Path
import oncurve.run.session, oncurve.models.loading.weights
from oncurve.cli import main

def closed(*descriptors):
    for descriptor in descriptors:
        os.close(descriptor)

def broken(*descriptors):
    reading, writing = os.pipe()
    os.close(reading)
    for descriptor in descriptors:
        os.dup2(writing, descriptor)

def full(*descriptors):
    device = os.open("/dev/full", os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(device, descriptor)

def hung_up(*descriptors):
    ours, theirs = pty.openpty()
    os.environ["TERM"] = "xterm-256color"
    for descriptor in descriptors:
        os.dup2(theirs, descriptor)
    os.close(theirs)
    os.close(ours)

def sigpipe(*descriptors):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    broken(*descriptors)

codes = {}
for name in sys.argv[1:]:
    kind, _, numbers = name.partition("-")
    child = os.fork()
    if not child:
        globals()[kind](*map(int, numbers.split("-")))
        sys.stdout = open(1, "w") if kind != "closed" or "1" not in numbers else None
        sys.stderr = open(2, "w") if kind != "closed" or "2" not in numbers else None
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
        sys.argv = ["oncurve", "train", "recipe.toml", "run.steps=2", "--out", name]
        sys.argv += [reward] if kind == "sigpipe" else []
        code = 99
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream and stream.flush()
            except BaseException:
                code = 120  # what Python makes of a flush that fails at its end
            os._exit(code)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
Path("codes.json").write_text(json.dumps(codes))
"""
REWARD = """
def length(completion, answer):
    print("a line from a worker" * 100, flush=True)
    return float(len(completion) % 7)
"""
CASES = ["broken-1", "closed-0-1-2", "full-1-2", "hung_up-0-1-2", "sigpipe-1-2"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = lay_out(tmp_path_factory.mktemp("project"))
    (folder / "reward.py").write_text(REWARD)
    (folder / "runner.py").write_text(RUNNER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "runner.py", *CASES], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_run_whose_output_goes_nowhere_is_done_all_the_same(project: Path, case: str) -> None:
    codes: dict[str, Any] = json.loads((project / "codes.json").read_text())
    assert codes[case] == 0
    lines = [json.loads(line) for line in (project / case / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line.get("completions/invalid", 0) == 0 for line in lines)  # the worker's print did not fail, either
    assert (project / case / "model" / "model.safetensors").is_file()
    config = (project / case / "config.toml").read_text()
    assert "a line from a worker" not in config + (project / case / "metrics.jsonl").read_text()
