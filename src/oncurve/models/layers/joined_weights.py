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

from oncurve.models.adapters.layer import base_of, joined_factors, low_rank_of
from oncurve.models.layers.prepacked_weights import is_plain


class JoinedLinear:
    """Linear layers with one input as one product: `(..., H)` -> `(..., O)`, O all outputs concatenated.

    What their adapters add is one product of each factor, by copies that `adapt` makes, always in the same memory.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        linears = [cast(nn.Linear, base_of(layer)) for layer in layers]
        self._layers, self._sizes = layers, [linear.out_features for linear in linears]
        self._first = linears[0].weight
        self._weight = _joined([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self._bias = _joined(biases) if biases else None
        self._factors: tuple[Tensor, Tensor] | None = None
        self._adapted = False

    @property
    def holds(self) -> bool:
        """Return whether the layers' weights are still where they were joined."""
        return self._first.data_ptr() == self._weight.data_ptr()

    def adapt(self) -> None:
        """Take the factors that the layers add now."""
        found = joined_factors([low_rank_of(layer) for layer in self._layers], self._sizes, self._weight.dtype)
        self._adapted = found is not None
        if found is None:
            return
        if self._factors is None:
            self._factors = found
        for kept, new in zip(self._factors, found, strict=True):
            kept.copy_(new)

    def __call__(self, x: Tensor) -> Tensor:
        """Return all layers' outputs of `x`, concatenated."""
        out = nn.functional.linear(x, self._weight, self._bias)
        if self._adapted and self._factors is not None:
            a, b = self._factors
            out.view(-1, len(b)).addmm_(nn.functional.linear(x, a).view(-1, len(a)), b.t())
        return out


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Return the parameters' rows in one tensor. Each parameter is a view of it from now on, unless it is one already,
    of a copy of the model that has the same frozen weights.
    """
    first = parameters[0]
    if len(parameters) == 1:
        return first
    ends = [parameter.data_ptr() + parameter.nbytes for parameter in parameters]
    room = first.untyped_storage().nbytes() - first.storage_offset() * first.itemsize
    if [parameter.data_ptr() for parameter in parameters[1:]] == ends[:-1] and ends[-1] - first.data_ptr() <= room:
        return first.detach().as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(one) for one in parameters]), strict=True):
        parameter.data = part
    return whole


Joined = Mapping[nn.Module, Sequence[JoinedLinear]]
"""The joined products of each block, in the block's order."""


@torch.no_grad()
def join(products: Mapping[nn.Module, Sequence[Sequence[nn.Module]]], before: Joined) -> Joined:
    """Return every block's products joined, with the factors that adapters add now: `before`, what a call gave earlier,
    unless weights have moved since.

    A block whose layers are not plain is left out.
    """
    joined = before
    if not before or not all(one.holds for each in before.values() for one in each):
        joined = {
            block: [JoinedLinear(layers) for layers in groups]
            for block, groups in products.items()
            if all(is_plain(layer) for layer in chain(*groups))
            and all(len({cast(nn.Linear, base_of(layer)).bias is None for layer in layers}) == 1 for layers in groups)
        }
    for one in chain(*joined.values()):
        one.adapt()
    return joined
