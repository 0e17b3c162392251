"""The benchmark of a GPU runs from end to end; without a GPU it says so and measures nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.gpu import measure as gpu

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_ends_with_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 2
    assert "torch sees no CUDA device, so nothing was measured" in capsys.readouterr().err


def test_micro_batches_are_whole_groups_and_take_every_row_once():
    plan = gpu.Plan(prompts=5, group_size=3, prompt_tokens=4, completion=6, micro_tokens=50, steps=1)
    assert list(gpu.micro_batches(plan)) == [slice(0, 6), slice(6, 12), slice(12, 15)]


@pytest.mark.slow
def test_a_rehearsal_passes_every_check(tmp_path):
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "bench.gpu", "--rehearse", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    result = json.loads(out.read_text())
    assert result["rehearsal"]
    assert not result["void"]
    assert result["models"]["toy"]["step_seconds"] > 0
