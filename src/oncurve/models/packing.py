"""Weights put in order for decoding: products that share an input made one, in the layout that the kernel wants.

On the CPU a product of few rows in half precision spends a third of its time on bringing the weights into the order
that the processor's matrix units read, at every call. While a decoder lives they do not change, so that is done once.
The packed copy takes the weights' memory again, for as long as the decoder lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

__all__ = ["MOST_JOINED_BYTES", "MOST_PACKED_BYTES", "Packed", "Packs", "pack", "packed_bytes"]

MOST_PACKED_BYTES = 2 << 30
"""Beyond so many bytes of half-precision weights nothing is packed: a second copy would cost more than it gives."""

MOST_JOINED_BYTES = 64 << 20
"""Other weights are only joined, which saves calls and nothing else: not worth it beyond small models."""


PIECE_BYTES = 24 << 20
"""A larger matrix is packed by pieces: below 32 MiB they come from the heap, whose pages are there already."""


class Packed:
    """Linear layers of one input as one: `(..., H)` -> `(..., O)`, O all their outputs side by side."""

    def __init__(self, layers: Sequence[nn.Linear], rows: int) -> None:
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        bias: Tensor | None = None
        if any(one is not None for one in biases):
            each = zip(weights, biases, strict=True)
            bias = torch.cat([of.new_zeros(of.shape[0]) if one is None else one for of, one in each])
        self._blocked = _half(weight)
        self._pieces = [(weight, bias)]
        if self._blocked:
            count = -(-weight.nbytes // PIECE_BYTES)
            parts = weight.chunk(count)
            some = [None] * len(parts) if bias is None else bias.chunk(count)
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self._pieces = [(reorder(part, rows), its) for part, its in zip(parts, some, strict=True)]

    def __call__(self, x: Tensor) -> Tensor:
        """All layers' outputs of `x`, side by side."""
        if not self._blocked:
            return nn.functional.linear(x, *self._pieces[0])
        product = torch.ops.mkldnn._linear_pointwise
        outputs: list[Tensor] = [product(x, weight, bias, "none", [], "") for weight, bias in self._pieces]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


Packs = Mapping[nn.Module, Sequence[Packed]]
"""A block's packed products, in its own order."""


def packed_bytes(weights: int, half: bool) -> int:
    """Bytes that packing takes where a model has `weights` bytes of them, half precision or not."""
    return weights if weights <= (MOST_PACKED_BYTES if half else MOST_JOINED_BYTES) else 0


@torch.no_grad()
def pack(products: Mapping[nn.Module, Sequence[Sequence[nn.Module]]], rows: int) -> Packs:
    """Every block's products packed for about `rows` rows; empty where that does not pay or cannot be done.

    Layers that are not `nn.Linear` any more (an adapter has been put around them) or are watched by hooks stay as they
    are, and with them their block.
    """
    plain: dict[nn.Module, list[list[nn.Linear]]] = {}
    for block, groups in products.items():
        linear = [[layer for layer in layers if _plain(layer)] for layers in groups]
        if list(map(len, linear)) == list(map(len, groups)):
            plain[block] = linear
    every = [layer.weight for groups in plain.values() for layers in groups for layer in layers]
    if not every or any(weight.device.type != "cpu" for weight in every):
        return {}
    if not packed_bytes(sum(weight.nbytes for weight in every), all(map(_half, every))):
        return {}
    return {block: [Packed(layers, rows) for layers in groups] for block, groups in plain.items()}


def _plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def _half(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
