"""Runs of the real command that kill themselves at a chosen place, and the comparison with one that was left alone."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from fakes.started import start_process
from fakes.tables import table
from fakes.waiting import until
from oncurve import cli, durable
from oncurve.metrics import METRICS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["oncurve.cli", "oncurve.run.session", "transformers.models.llama.modeling_llama"])
QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
SAME = ("model.safetensors", "replay.jsonl", "surplus.jsonl")
TIMES = {name for name, metric in METRICS.items() if metric.unit in ("seconds", "tokens per second", "bytes")}

PLACES = table("killed_runs", "places")


def start(*arguments: str, begin: Sequence[str] = ("-m", "oncurve")) -> "subprocess.Popen[str]":
    environment = {**os.environ, **QUIET}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return start_process(sys.executable, *begin, *arguments, env=environment, text=True, **streams)


def said_by(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """Wait for the end of a run, which must have this exit code; return what it said."""
    said, _ = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


def forked(arguments: Sequence[str], place: Sequence[Any] = ()) -> tuple[int | None, str]:
    """Run the command in a process that has its imports from the one it is forked from; its exit code and words."""
    with tempfile.NamedTemporaryFile() as said:
        given = (arguments, place, said.name, os.getcwd(), {**os.environ, **QUIET})
        process = FORKS.Process(target=command, args=given)
        process.start()
        try:
            process.join(900)
        finally:
            process.kill()
            process.join()
        return process.exitcode, Path(said.name).read_text(encoding="utf-8")


def finish(*arguments: str) -> str:
    code, said = forked(arguments)
    assert code == 0, said
    return said


def command(
    arguments: Sequence[str], place: Sequence[Any], said: str, folder: str, environment: dict[str, str]
) -> None:
    """Be the command, with this standard output and error; kill this process at `place`."""
    with open(said, "wb", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0:0] = [folder]  # as for `python -m`
    sys.argv = ["oncurve", *arguments]
    if place:
        die_at(*place)
    cli.main()


def die_at(module: str, name: str, method: str, count: int) -> None:
    """Make the call number `count` of a method, or of a function where there is no class, kill this process."""
    owner = getattr(import_module(module), name) if name else import_module(module)
    real, calls = getattr(owner, method), itertools.count(1)

    def deadly(*arguments: Any, **named: Any) -> Any:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(owner, method, deadly)


def killed_at(place: Sequence[Any], *arguments: str) -> str:
    """Run the command until `place` (module, class, method, count of calls), where it kills itself; what it said."""
    code, said = forked(arguments, place)
    assert code == -signal.SIGKILL, said
    return said


def until_checkpoints(process: "subprocess.Popen[str]", out: Path, count: int) -> None:
    """Wait until a run has left so many checkpoints."""
    until(lambda: len(durable.numbered(out / "checkpoints")) >= count or process.poll() is not None, 900.0)
    assert process.poll() is None, process.communicate()


def kill_all(process: "subprocess.Popen[str]", number: int = signal.SIGKILL) -> str:
    """Send the signal to a run; none of the processes that it had started lives on."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    said, _ = process.communicate(timeout=300)
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
    return said


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def metrics_of(out: Path, *without: str) -> list[dict[str, Any]]:
    """The log of a run; `without` times and what begins with these words."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    left_out = {key for line in lines for key in line if key in TIMES or key.startswith(without)} if without else set()
    return [{key: value for key, value in line.items() if key not in left_out} for line in lines]


def compare(first: Path, second: Path, steps: int, *without: str) -> None:
    """Two runs are the same bit for bit: checkpoints, samples, models, and logs but for times and processes.

    Of the logs what begins with the words `without` is left out, too.
    """
    names = [[path.name for _, path in durable.numbered(out / "checkpoints")] for out in (first, second)]
    assert names[0] == names[1]
    assert names[0][-1] == f"step-{steps:06d}"
    for name in names[0]:
        one, two = (out / "checkpoints" / name for out in (first, second))
        files = {file.name for file in one.glob("*.safetensors")}
        assert files == {file.name for file in two.glob("*.safetensors")} != set()
        for file in files:
            ours, theirs = (durable.read_tensors(folder / file) for folder in (one, two))
            assert {key: raw(ours[key]) for key in ours} == {key: raw(theirs[key]) for key in theirs}, (name, file)
        ours, theirs = (durable.read_json(folder / "state.json") for folder in (one, two))
        assert (ours["learner"], ours["outer"]) == (theirs["learner"], theirs["outer"]), name
    found = metrics_of(second, "cluster/", *without)
    assert metrics_of(first, "cluster/", *without) == found
    assert [line["step"] for line in found if line["step"]] == list(range(1, steps + 1))  # step 0: an evaluation
    whole = [path.relative_to(first) for path in first.rglob("*") if path.name in SAME or "rollouts" in path.parts]
    assert Path("model/model.safetensors") in whole
    for path in whole:
        assert (first / path).is_dir() or (first / path).read_bytes() == (second / path).read_bytes(), path
