"""The choice of a computation's form by its device. No other file decides it.

    CPU     attention on padded rows, decoding by cohorts of rows      `packed_rows`, `host_loop`
    CUDA    attention by flash kernels, decoding in CUDA graphs        `flash`, `graph_loop`

The CUDA forms run on a CPU too, where the tests compare them with the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from oncurve.models.attention import FlashContext, PackedContext
from oncurve.models.decode import GraphBuffers, Run, capture_on


def packed_context(device: torch.device) -> type[PackedContext]:
    """Return the attention of the packed training mode."""
    return FlashContext if device.type == "cuda" else PackedContext


def graph_buffers(
    run: Run, module: nn.Module, device: torch.device, prepare: Callable[[], None]
) -> GraphBuffers | None:
    """Return where a model's rows are decoded in graphs; None on devices without."""
    capture = capture_on(device)
    return None if capture is None else GraphBuffers(run, module, device, capture, prepare)
