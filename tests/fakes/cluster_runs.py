"""Runs of the command in processes of their own, and whether two of them are the same run."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fakes.killed_runs import TIMES, raw
from oncurve import durable


def start(*arguments: str, begin: Sequence[str] = ("-m", "oncurve")) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, *begin, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*arguments: str, seconds: float = 240.0) -> str:
    process = start(*arguments)
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def compare(first: Path, second: Path, steps: int) -> None:
    """Bit for bit: the checkpoints, the samples, the model, and the metrics but for times and the cluster's."""
    for step in range(1, steps + 1):
        folder = Path("checkpoints") / f"step-{step:06d}"
        names = {file.name for file in (first / folder).glob("learner*.safetensors")}
        assert names == {file.name for file in (second / folder).glob("learner*.safetensors")} != set()
        for name in names:
            one, two = (durable.read_tensors(out / folder / name) for out in (first, second))
            assert {key: raw(one[key]) for key in one} == {key: raw(two[key]) for key in two}, step
    assert (first / "model/model.safetensors").read_bytes() == (second / "model/model.safetensors").read_bytes()
    lines = [
        [
            {key: value for key, value in json.loads(line).items() if key not in TIMES and "cluster/" not in key}
            for line in (out / "metrics.jsonl").read_text().splitlines()
        ]
        for out in (first, second)
    ]
    assert lines[0] == lines[1]
    for path in sorted((first / "rollouts").iterdir()):
        assert path.read_bytes() == (second / "rollouts" / path.name).read_bytes(), path.name
