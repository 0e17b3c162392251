"""What a process sets up for a GPU, and what it says of one and of its memory: nothing of it needs a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fakes.tables import table
from oncurve.machine import fingerprint
from oncurve.machine.threads import prepare_process
from oncurve.metrics import Metrics
from oncurve.run.directory.folder import environment_changes
from oncurve.trainer.watching.observe import observe_memory, peak_memory_bytes

SAID = "import os, oncurve; print({n: v for n, v in os.environ.items() if n.endswith('ALLOC_CONF')})"


@pytest.mark.parametrize(("given", "chosen"), table("gpu_setup", "allocators"))
def test_segments_grow_unless_the_user_has_said_something(given: dict[str, str], chosen: dict[str, str]) -> None:
    others = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
    said = subprocess.run(
        [sys.executable, "-c", SAID], env=others | given, capture_output=True, check=True, text=True
    ).stdout
    assert said.strip() == str(chosen)


def test_products_are_summed_in_full_precision() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    prepare_process(None)
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


def test_a_resume_with_another_card_or_driver_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint.gpu_versions("cpu") == {"driver": None, "cuda": None, "triton": None}
    file = tmp_path / "version"
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\nGCC version: gcc 12.2.0\n"
    )
    monkeypatch.setattr(fingerprint, "DRIVER", file)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    before = fingerprint.gpu_versions("cuda") | {"device": "NVIDIA H100"}
    assert (before["driver"], before["cuda"]) == ("570.86.10", "13.0")
    monkeypatch.setattr(fingerprint, "DRIVER", tmp_path / "none")
    now = fingerprint.gpu_versions("cuda") | {"device": "NVIDIA H200"}
    assert environment_changes(before, now) == [
        "device was 'NVIDIA H100' and is 'NVIDIA H200'",
        "driver was '570.86.10' and is None",
    ]


def test_the_peak_is_that_of_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    found = {}
    for device in ("cpu", "NVIDIA H100"):
        metrics = Metrics()
        observe_memory(metrics, device)
        found[device] = metrics.result()["memory/peak_bytes"]
    assert found["NVIDIA H100"] == 7
    assert 1e6 < found["cpu"] <= peak_memory_bytes()


CHILD = "from oncurve.trainer.watching.observe import peak_memory_bytes; print(peak_memory_bytes())"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.slow
def test_the_peak_is_that_of_this_process_and_not_of_its_parent():
    held = b"x" * (1200 << 20)  # more than a process with torch and oncurve in it
    parent = peak_memory_bytes()
    child = int(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True).stdout)
    assert len(held) < parent
    assert (50 << 20) < child < len(held) // 2
