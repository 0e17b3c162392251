"""Facts, other than the program, that bits depend on: processor, library settings, sample results.

MKL and oneDNN may choose different kernels on two processors for which torch reports the same instruction set, and
environment variables change the choice. So a run records processor and variables, and also a digest of sample results,
which shows whether two processes compute the same bits, whatever the cause.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

LIBRARY_SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that choose the kernels of torch, MKL, oneDNN and OpenBLAS."""

DRIVER = Path("/proc/driver/nvidia/version")

_SHAPES = ((1, 64, 200), (7, 32, 61), (128, 192, 160))  # a vector, odd sizes, sizes that several threads share
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def library_settings() -> str:
    """Return the `LIBRARY_SETTINGS` that are set, as `NAME=value` words."""
    return " ".join(f"{name}={os.environ[name]}" for name in LIBRARY_SETTINGS if name in os.environ)


def processor() -> str:
    """Return the processor's name and capabilities, as far as torch reports them (2.13 and later)."""
    try:
        found = dict(torch.cpu.get_capabilities())
    except (AttributeError, RuntimeError):  # an older torch; a processor unknown to its library
        return platform.processor() or platform.machine()
    capabilities = sorted(name for name, value in found.items() if value is True)
    return " ".join([str(found.get("cpu_name", platform.machine())), *capabilities])


def gpu_versions(device: str) -> dict[str, str | None]:
    """Return the versions of driver, CUDA and Triton, on which a GPU's kernels depend; None where there is none.

    `device`: the type of the one that computes; on another than CUDA all are None.
    """
    found: dict[str, str | None] = dict.fromkeys(("driver", "cuda", "triton"))
    if device != "cuda":
        return found
    with contextlib.suppress(OSError):
        written = re.search(r"\d+\.[\d.]+", DRIVER.read_text(encoding="ascii", errors="replace"))
        found["driver"] = written and written[0]
    with contextlib.suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    return found | {"cuda": torch.version.cuda}


def digest_of_sample_results() -> str:
    """Return twelve hexadecimal digits, equal if sample products, attention and functions have equal bits on the CPU.

    The samples are values and gradients in float32, float64 and bfloat16, with torch's current number of threads and
    precision of float32 products. Takes milliseconds and uses no random number.
    """
    return _digest(torch.get_num_threads(), torch.get_float32_matmul_precision())


@functools.cache
def _digest(threads: int, precision: str) -> str:
    """Return the digest, cached by the settings that can change within a process."""
    digest = hashlib.sha256()
    with torch.enable_grad():
        for dtype in _DTYPES:
            for rows, inner, columns in _SHAPES:
                left, right = _numbers(rows, inner, dtype=dtype), _numbers(columns, inner, dtype=dtype)
                _add(digest, F.linear(left, right), left, right)
            query, key, value = (_numbers(1, 2, 33, 16, dtype=dtype) for _ in range(3))
            mask = torch.ones(33, 33, dtype=torch.bool).tril()
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            _add(digest, attended, query, key, value)
            row = _numbers(3, 1009, dtype=dtype)
            _add(digest, F.silu(F.rms_norm(row, (1009,))) * torch.log_softmax(row, -1), row)
    return digest.hexdigest()[:12]


def _numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return multiples of 1/1009 in [-1, 1), unordered, exact up to their rounding to `dtype`."""
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.int64) * 7919 % 2018 - 1009
    return (steps.double() / 1009).to(dtype).view(shape).requires_grad_()


def _add(digest: hashlib._Hash, result: Tensor, *inputs: Tensor) -> None:
    for tensor in (result, *torch.autograd.grad(result.square().sum(), inputs)):
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
