"""How close two ways to one number come, by dtype: other shapes, kernels and instruction sets round differently."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2}
"""Relative to the number, and absolute below 1: float32 rounds by 6e-8, and a small network some hundred times."""


def about(wanted: float | Sequence[float] | dict[str, float], dtype: torch.dtype = torch.float32) -> Any:
    """What equals `wanted` as closely as `dtype` allows where the work was cut in another way."""
    return pytest.approx(wanted, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype])


def assert_close(found: Tensor, wanted: Tensor, dtype: torch.dtype | None = None) -> None:
    """Two tensors agree as closely as `dtype` allows; by itself the coarser one of theirs. Shapes are equal."""
    allowed = TOLERANCE[dtype] if dtype is not None else max(TOLERANCE[found.dtype], TOLERANCE[wanted.dtype])
    torch.testing.assert_close(found, wanted, rtol=allowed, atol=allowed, check_dtype=False)
