"""What the bits of a result depend on besides the program: processor, libraries' settings, and what products come to.

Two processors may share torch's name for an instruction set and yet get other kernels from MKL or oneDNN, and these
libraries take orders from the environment. So a run records them, and a digest of sample results as well, which says
whether two processes calculate alike without knowing why.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["LIBRARY_SETTINGS", "digest_of_sample_results", "library_settings", "processor"]

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
"""Environment variables by which torch, MKL, oneDNN and OpenBLAS are told which kernels to take."""

_SHAPES = ((1, 64, 200), (7, 32, 61), (128, 192, 160))  # a vector, an odd one, one that several threads share
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def library_settings() -> str:
    """The `LIBRARY_SETTINGS` that are set, as `NAME=value` words."""
    return " ".join(f"{name}={os.environ[name]}" for name in LIBRARY_SETTINGS if name in os.environ)


def processor() -> str:
    """The processor's name and what it can do, as far as torch says it (2.13 and later do)."""
    try:
        found = dict(torch.cpu.get_capabilities())
    except (AttributeError, RuntimeError):  # an older torch; a processor that its library does not know
        return platform.processor() or platform.machine()
    able = sorted(name for name, value in found.items() if value is True)
    return " ".join([str(found.get("cpu_name", platform.machine())), *able])


def digest_of_sample_results() -> str:
    """Twelve hexadecimal digits: equal where sample products, attention and functions come to equal bits on the CPU.

    Values and gradients, in float32, float64 and bfloat16, with the threads and the precision of float32 products that
    torch has now. Takes milliseconds, and no random number.
    """
    return _digest(torch.get_num_threads(), torch.get_float32_matmul_precision())


@functools.cache
def _digest(threads: int, precision: str) -> str:
    """The digest, calculated once for what can change within a process."""
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
    """Multiples of 1/1009 in [-1, 1), in no order, exact up to their rounding to `dtype`."""
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.int64) * 7919 % 2018 - 1009
    return (steps.double() / 1009).to(dtype).view(shape).requires_grad_()


def _add(digest: hashlib._Hash, result: Tensor, *inputs: Tensor) -> None:
    for tensor in (result, *torch.autograd.grad(result.square().sum(), inputs)):
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
