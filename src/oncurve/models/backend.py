"""The choice of a computation's form by its device. No other file decides it.

    CPU     attention on padded rows, decoding by cohorts of rows      `packed_rows`, `host_loop`
    CUDA    attention by flash kernels, decoding in CUDA graphs        `flash`, `graph_loop`

The CUDA forms run on a CPU too, where the tests compare them with the others.
"""

from __future__ import annotations

import torch

from oncurve.models.attention.flash import FlashContext
from oncurve.models.attention.packed_rows import PackedContext
from oncurve.models.decode.cuda_graphs import capture_on
from oncurve.models.decode.graph_buffers import GraphBuffers


def packed_context(device: torch.device) -> type[PackedContext]:
    """Return the attention of the packed training mode."""
    return FlashContext if device.type == "cuda" else PackedContext


def graph_buffers(device: torch.device) -> GraphBuffers | None:
    """Return where rows are decoded in graphs; None on devices without."""
    capture = capture_on(device)
    return None if capture is None else GraphBuffers(device, capture)
