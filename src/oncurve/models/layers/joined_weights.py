"""Weights of products with one input as views of one tensor: a GPU then makes one product of them when it decodes.

The parameters stay what they are, under their names, and whoever writes to them writes to the joined tensor. Training
goes on with a product for each: their gradients are parameters of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from oncurve.models.adapters import low_rank_of
from oncurve.models.layers.prepacked_weights import is_plain


class JoinedLinear:
    """Linear layers with one input as one product: `(..., H)` -> `(..., O)`, O all outputs concatenated."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._first = layers[0].weight
        self._weight = _joined([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._bias = _joined(biases) if biases else None

    @property
    def holds(self) -> bool:
        """Return whether the layers' weights are still the joined ones: nobody has moved them."""
        return self._first.data_ptr() == self._weight.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """Return all layers' outputs of `x`, concatenated."""
        return nn.functional.linear(x, self._weight, self._bias)


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Return the parameters' rows in one tensor, of which each is a view from now on."""
    if len(parameters) == 1:
        return parameters[0]
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(one) for one in parameters]), strict=True):
        parameter.data = part
    return whole


Joined = Mapping[nn.Module, Sequence[JoinedLinear]]
"""The joined products of each block, in the block's order."""


@torch.no_grad()
def join(products: Mapping[nn.Module, Sequence[Sequence[nn.Module]]], before: Joined) -> Joined:
    """Return every block's products joined: `before`, what a call gave earlier, unless weights have moved since.

    A block whose layers are not plain, or have an adapter, is left out.
    """
    if before and all(joined.holds for each in before.values() for joined in each):
        return before
    return {
        block: [JoinedLinear(cast(Sequence[nn.Linear], layers)) for layers in groups]
        for block, groups in products.items()
        if all(is_plain(layer) and low_rank_of(layer) is None for layer in chain(*groups))
        and all(len({layer.bias is None for layer in layers}) == 1 for layers in groups)
    }
