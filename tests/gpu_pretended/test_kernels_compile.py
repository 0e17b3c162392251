"""Kernels compiled for real GPUs, without one: nothing is run. Needs Triton; with the CUDA build of torch, all of them.

A kernel that needs more registers than a thread has keeps the rest in memory (a spill), and is slow; one that asks for
more shared memory than a multiprocessor has does not start.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fakes.gpu_forms import COMPILED

triton = pytest.importorskip("triton", reason="Triton compiles the kernels")

pytestmark = pytest.mark.slow

SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}
"""Shared memory of a block, by compute capability: A100, L40S and RTX 4090, H100."""

SPILLED_BYTES = 128

HEADS = {"0.5B": (14, 2, 64), "1.5B": (12, 2, 128), "7B": (28, 4, 128), "no groups": (8, 8, 96)}


@pytest.fixture(params=SHARED_BYTES)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """The compute capability, and the kernels that launches from here on are compiled to."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    found: list[Any] = []
    launch = JITFunction.run
    target = GPUTarget("cuda", request.param, 32)
    number = {"get_current_device": lambda: 0, "get_current_stream": lambda device: 0}
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target, **number))
    monkeypatch.setattr(JITFunction, "run", lambda *a, warmup, **k: found.append(launch(*a, warmup=True, **k)))
    return request.param, found


def spilled(ptx: str, capability: int, folder: Path) -> int:
    """Bytes that the assembler's report says are spilled, the larger of stores and loads."""
    file = folder / "kernel.ptx"
    file.write_text(ptx)
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    name = f"sm_{capability}{'a' if capability == 90 else ''}"
    command = [ptxas, "-v", f"--gpu-name={name}", file, "-o", folder / "kernel.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stderr
    assert done.returncode == 0, said
    return max(int(number) for number in re.findall(r"(\d+) bytes spill", said))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("model", HEADS)
def test_decoding(model: str, dtype: torch.dtype, compiled: tuple[int, list[Any]], tmp_path: Path) -> None:
    from oncurve.models.decode import triton_kernels

    (capability, found), (heads, kv_heads, size) = compiled, HEADS[model]
    for kernel in (triton_kernels._write, triton_kernels._attend, triton_kernels._join):
        kernel.device_caches.clear()  # of the GPU before
    keys, values = torch.zeros(2, 64 * 32, kv_heads, size, dtype=dtype)
    for rows in (8, 1024):  # few rows are divided into shares, many are not
        query = torch.zeros(rows, heads, size, dtype=dtype)
        table, ends = torch.zeros(rows, 16, dtype=torch.int32), torch.ones(rows, dtype=torch.int64)
        triton_kernels.write(query[:, :kv_heads], query[:, :kv_heads], keys, values, ends)
        triton_kernels.attend(query, keys, values, table, ends - 1, ends, 32, size**-0.5)
    assert {kernel.metadata.name for kernel in found} == {"_write", "_attend", "_join"}
    for kernel in found:
        assert kernel.metadata.shared <= SHARED_BYTES[capability]
        assert spilled(kernel.asm["ptx"], capability, tmp_path) <= SPILLED_BYTES


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build asks its driver while it compiles")
def test_compiled_functions(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "fakes" / "compile_for_gpu.py"
    place = os.pathsep.join(sys.path)
    settings = {"PYTHONPATH": place, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    said = subprocess.run([sys.executable, program], env=os.environ | settings, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr.decode()[-2000:]
    found = json.loads(said.stdout)
    assert found.keys() >= {"_normed", "_differentiated", "_rotate", "_rotate_back", "_gate", "_gate_back", "_moments"}
    assert {name: len(kernels) for name, kernels in found.items()} == {name: COMPILED.get(name, 1) for name in found}
    for kernels in found.values():
        assert all(spilled(ptx, 90, tmp_path) <= SPILLED_BYTES for each in kernels for ptx in each)
