"""Weights where torch puts tensors: what a product gives must not depend on the file that its weights were read from.

Loading maps a safetensors file into memory, and its tensors begin where the file has them: after a header whose length
depends on names and metadata. Libraries of linear algebra choose other kernels, and so other roundings, for other
alignments: products with the same weights, read from a model's folder and from a checkpoint, could differ in bits.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

__all__ = ["ALIGNMENT", "aligned"]

ALIGNMENT = 64
"""Bytes: where torch's allocator lets every tensor on the CPU begin."""

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def aligned(module: Module) -> Module:
    """`module`, every parameter and buffer of which begins at a multiple of `ALIGNMENT` bytes.

    What does so already is left alone; the rest is copied, one tensor at a time. Tied weights stay tied.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return module
