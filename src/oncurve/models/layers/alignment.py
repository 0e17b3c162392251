"""Weights at aligned addresses, so that products do not depend on the file that the weights were read from.

Loading maps a safetensors file into memory, and its tensors begin at their offsets in the file: after a header whose
length depends on names and metadata. For other alignments linear algebra libraries choose other kernels, with other
rounding: products with the same weights, read from a model's folder and from a checkpoint, could differ in bits.
"""

from typing import TypeVar

import torch
from torch import nn

ALIGNMENT = 64
"""Bytes: torch's allocator aligns every tensor on the CPU to this."""

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def aligned(module: Module) -> Module:
    """Return `module`, with every parameter and buffer at a multiple of `ALIGNMENT` bytes.

    Unaligned tensors are copied, one at a time. Tied weights stay tied.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return module
