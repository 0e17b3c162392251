"""Weights for decoding: products with one input are joined, and on a CPU packed in the layout of the kernel.

On the CPU a product of few rows spends up to a half of its time, at every call, on reordering the weights for the
kernel. While a decoder exists they do not change, so it reorders them once. The packed copy takes the weights' memory a
second time, for as long as the decoder exists.

On a GPU the weights become views of one tensor. The parameters stay what they are, under their names, and what is
written to them is in the joined tensor. Training goes on with a product for each: their gradients are parameters of
their own.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from oncurve.models.adapters.layer import base_of, joined_factors, low_rank_of

MOST_PREPACKED_BYTES = 2 << 30
"""Above this many bytes of weights nothing is packed: the second copy would cost too much."""

MOST_JOINED_BYTES = 64 << 20
"""The same where no product is reordered: a join saves calls alone, which pays for small models only."""

LEAST_FLOAT32 = 1 << 16
"""Numbers of a float32 matrix that is reordered. A call takes 10 microseconds more, as much as a smaller one gains."""

PIECE_BYTES = 24 << 20
"""A larger matrix is packed in pieces: below 32 MiB they come from the heap, whose pages are mapped already."""


class PrepackedLinear:
    """Linear layers with one input as one product: `(..., H)` -> `(..., O)`, O all outputs concatenated.

    The factors of an adapter, those that the layers add when they are packed, are in the product:

        y = W x + b + s · B A x = [W, s B] [x; A x] + b
    """

    def __init__(self, adapted: Sequence[nn.Module], rows: int) -> None:
        layers = [cast(nn.Linear, base_of(layer)) for layer in adapted]
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        bias: Tensor | None = None
        if any(one is not None for one in biases):
            each = zip(weights, biases, strict=True)
            bias = torch.cat([of.new_zeros(of.shape[0]) if one is None else one for of, one in each])
        ranks = [low_rank_of(layer) for layer in adapted]
        factors = joined_factors(ranks, [layer.out_features for layer in layers], weight.dtype)
        if factors is not None:
            weight = torch.cat([weight, factors[1]], 1)
        self._blocked = _reorders(weight)
        self._pieces = [(weight, bias)]
        self._first = None if factors is None else factors[0]
        if self._blocked:
            count = -(-weight.nbytes // PIECE_BYTES)
            parts = weight.chunk(count)
            some = [None] * len(parts) if bias is None else bias.chunk(count)
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self._pieces = [(reorder(part, rows), its) for part, its in zip(parts, some, strict=True)]
            self._first = None if self._first is None else reorder(self._first, rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Return all layers' outputs of `x`, concatenated."""
        if self._first is not None:
            x = torch.cat([x, self._product(x, self._first, None)], -1)
        outputs = [self._product(x, weight, bias) for weight, bias in self._pieces]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._blocked:
            return nn.functional.linear(x, weight, bias)
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


PrepackedWeights = Mapping[nn.Module, Sequence[Callable[[Tensor], Tensor]]]
"""The packed products of each block, in the block's order."""


def prepacked_bytes(weights: int) -> int:
    """Return bytes of the packed copy of `weights` bytes of weights; 0: they are not packed."""
    return weights if weights <= MOST_PREPACKED_BYTES else 0


@torch.no_grad()
def prepack(products: Mapping[nn.Module, Sequence[Sequence[nn.Module]]], rows: int) -> PrepackedWeights:
    """Return every block's products packed for about `rows` rows; empty where packing does not pay or is not possible.

    A block with a layer that is no plain `nn.Linear`, adapted or not, or has hooks is not packed.
    """
    plain = {block: groups for block, groups in products.items() if all(map(is_plain, chain(*groups)))}
    every = [cast(nn.Linear, base_of(layer)).weight for groups in plain.values() for layer in chain(*groups)]
    if not every or any(weight.device.type != "cpu" for weight in every):
        return {}
    copied = sum(weight.nbytes for weight in every)
    if not prepacked_bytes(copied) or (copied > MOST_JOINED_BYTES and not any(map(_reorders, every))):
        return {}
    return {block: [PrepackedLinear(layers, rows) for layers in groups] for block, groups in plain.items()}


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is a linear one, adapted or not, without hooks."""
    base = base_of(layer)
    return type(base) is nn.Linear and not any(part._forward_hooks or part._forward_pre_hooks for part in (layer, base))


def _reorders(weight: Tensor) -> bool:
    """Return whether oneDNN's product is the faster one: bf16 where it is native, larger matrices in float32."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.float32:
        return weight.numel() >= LEAST_FLOAT32 and torch.cpu.get_capabilities().get("avx2") is True
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
        self._added: tuple[Tensor, Tensor] | None = None

    @property
    def holds(self) -> bool:
        """Return whether the layers' weights are still where they were joined."""
        return self._first.data_ptr() == self._weight.data_ptr()

    def adapt(self) -> None:
        """Take the factors that the layers add now."""
        found = joined_factors([low_rank_of(layer) for layer in self._layers], self._sizes, self._weight.dtype)
        if found is not None:
            self._factors = self._factors or found
            for kept, new in zip(self._factors, found, strict=True):
                kept.copy_(new)
        self._added = None if found is None else self._factors

    def __call__(self, x: Tensor) -> Tensor:
        """Return all layers' outputs of `x`, concatenated."""
        out = nn.functional.linear(x, self._weight, self._bias)
        if self._added is not None:
            a, b = self._added
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
