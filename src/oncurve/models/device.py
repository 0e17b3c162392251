"""Which form of a computation a device gets: the one place that decides.

    CPU     attention on padded rows, decoding by cohorts of rows      `packed`, `cohorts`
    CUDA    FlexAttention, decoding in CUDA graphs                     `flex`, `graphs`

The CUDA forms run on a CPU too, where the tests compare them with the others; they have not been run on a GPU.
"""

from __future__ import annotations

import torch
from torch import nn

from oncurve.models.graphs import Room, capture_on
from oncurve.models.packed import PackedContext
from oncurve.models.prefill import Run

__all__ = ["decoding_room", "packed_context"]


def packed_context(device: torch.device) -> type[PackedContext]:
    """The attention of the packed training mode."""
    if device.type != "cuda":
        return PackedContext
    from oncurve.models.flex import FlexContext  # FlexAttention is not imported where it is not used

    return FlexContext


def decoding_room(run: Run, module: nn.Module, device: torch.device) -> Room | None:
    """Where a model's rows are decoded in graphs; None where they are decoded otherwise."""
    capture = capture_on(device)
    return None if capture is None else Room(run, module, device, capture)
