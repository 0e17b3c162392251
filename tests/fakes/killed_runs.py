"""Runs of the real command that kill themselves at a chosen place, and the comparison with one that was left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from oncurve import durable
from oncurve.metrics import METRICS

TIMES = {name for name, metric in METRICS.items() if metric.unit in ("seconds", "tokens per second", "bytes")}

KILLER = """
import os, signal, sys
from importlib import import_module
module, name, method, count = sys.argv[1:5]
owner = getattr(import_module(module), name)
real, calls = getattr(owner, method), [0]
def deadly(*arguments, **named):
    calls[0] += 1
    if calls[0] == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
setattr(owner, method, deadly)
sys.argv = ["oncurve", *sys.argv[5:]]
from oncurve.cli import main
main()
"""
PLACES = {
    "rollout": ("oncurve.rollout.engine", "InProcessEngine", "_completions", 20),
    "update": ("oncurve.learner.optimizer.update", "MasterAdamW", "gradient_norm", 4),
    "reward-model training": ("oncurve.reward_models.learner", "RewardLearner", "update", 2),
    "keeping examples": ("oncurve.reward_models.replay", "Replay", "add", 6),
}


def command(arguments: list[str], *begin: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    begin = begin or ("-m", "oncurve")
    return subprocess.run(
        [sys.executable, *begin, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def compare(first: Path, second: Path, steps: int) -> None:
    """Bit for bit: every checkpoint, the logs but for times, the samples, and both models."""
    for step in range(1, steps + 1):
        name = f"checkpoints/step-{step:06d}"
        for file in ("learner.safetensors", "reward_model.safetensors"):
            one, two = (durable.read_tensors(out / name / file) for out in (first, second))
            assert {key: raw(one[key]) for key in one} == {key: raw(two[key]) for key in two}, (step, file)
        one, two = (durable.read_json(out / name / "state.json") for out in (first, second))
        assert one["learner"] == two["learner"]
        assert one["outer"] == two["outer"]
    lines = [
        [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in path.read_text().splitlines()]
        for path in (first / "metrics.jsonl", second / "metrics.jsonl")
    ]
    assert lines[0] == lines[1]
    assert (first / "replay.jsonl").read_bytes() == (second / "replay.jsonl").read_bytes()
    for path in sorted((first / "rollouts").iterdir()):
        assert path.read_bytes() == (second / "rollouts" / path.name).read_bytes(), path.name
    for file in ("model/model.safetensors", "reward_model/model.safetensors"):
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
