"""A linear layer with a low-rank product, and the products of layers with one input.

    y = W x + b + s · B A x        W, b frozen;  A (r, H) and B (O, r) trained;  s = α / r        LoRA, arXiv:2106.09685

PEFT puts the layers into a module. Here they get a class before PEFT's own with another forward, so that

* which factors a layer adds (the trained ones, those of a frozen copy, or none) is one switch for the whole model;
* layers with one input compute A x in one product, and add B to the base's output in place.

The results are those of PEFT's forward up to rounding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

NAME = "default"
"""PEFT's name of the adapter in a module."""


_OWN_OUTPUT = ("Linear", "Conv1D")
"""Layers whose output may be written to: a quantised layer's kernels need theirs as it is."""


@dataclass(frozen=True)
class LowRank:
    """The factors of one layer: `scale · (x Aᵀ) Bᵀ`, `a (r, H)` and `b (O, r)`."""

    a: Tensor
    b: Tensor
    scale: float


class Switch:
    """The choice of factors that the layers of one model add.

    chosen   None: the trained ones. Otherwise factors by the layers' names; a layer that is not there adds nothing
    """

    def __init__(self) -> None:
        self.chosen: Mapping[str, LowRank] | None = None

    @contextmanager
    def choosing(self, chosen: Mapping[str, LowRank] | None) -> Iterator[None]:
        """Return a context in which the layers add `chosen`."""
        before, self.chosen = self.chosen, chosen
        try:
            yield
        finally:
            self.chosen = before


class AdaptedLayer(nn.Module):
    """The class that `adopt` puts before that of PEFT's layer.

    path     the layer's name in its model
    switch   the state that the layers of the model share
    """

    path: str
    switch: Switch

    @property
    def base(self) -> Any:
        """The frozen layer."""
        return self._modules["base_layer"]

    @property
    def trained(self) -> LowRank:
        """The factors that are trained."""
        layer = cast(Any, self)
        return LowRank(layer.lora_A[NAME].weight, layer.lora_B[NAME].weight, layer.scaling[NAME])

    @property
    def low_rank(self) -> LowRank | None:
        """The factors that the layer adds now; None: it adds nothing."""
        chosen = self.switch.chosen
        return self.trained if chosen is None else chosen.get(self.path)

    def forward(self, x: Tensor, *inputs: Any, **others: Any) -> Tensor:
        """Return `(..., H)` -> `(..., O)`."""
        rows = x.reshape(-1, x.shape[-1])
        output = self.base(rows, *inputs, **others)
        own = type(self.base).__name__ in _OWN_OUTPUT
        (added,) = _add_low_rank([output if own else output.clone()], [self.low_rank], rows)
        return added.view(*x.shape[:-1], added.shape[-1])


def adopt(layer: nn.Module, path: str, switch: Switch) -> AdaptedLayer:
    """Put `AdaptedLayer` before the class of a layer of PEFT's, in place."""
    kind = type(layer)
    layer.__class__ = type(kind.__name__, (AdaptedLayer, kind), {"__module__": kind.__module__})
    adapted = cast(AdaptedLayer, layer)
    adapted.path, adapted.switch = path, switch
    return adapted


def base_of(layer: nn.Module) -> nn.Module:
    """Return the frozen layer of an adapted one; any other layer itself."""
    return cast(nn.Module, layer.base) if isinstance(layer, AdaptedLayer) else layer


def low_rank_of(layer: nn.Module) -> LowRank | None:
    """Return the factors that a layer adds now; None: it adds nothing."""
    return layer.low_rank if isinstance(layer, AdaptedLayer) else None


def factors_in_use(module: nn.Module) -> Iterator[Tensor]:
    """Return the factors that the layers below `module` add now."""
    for part in module.modules():
        found = low_rank_of(part)
        if found is not None:
            yield from (found.a, found.b)


def products(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return the outputs `(..., O)` of linear layers with one input `x (..., H)`."""
    rows = x.reshape(-1, x.shape[-1])
    added = _add_low_rank([base_of(layer)(rows) for layer in layers], [low_rank_of(layer) for layer in layers], rows)
    return [output.view(*x.shape[:-1], output.shape[-1]) for output in added]


def _add_low_rank(outputs: list[Tensor], ranks: Sequence[LowRank | None], x: Tensor) -> list[Tensor]:
    """Return each layer's base output `(N, O)`, with its low-rank product of `x (N, H)` added in place.

    Rows, and no views of them: the backward pass of an addition in place to a view copies the gradient.
    """
    present = [rank for rank in ranks if rank is not None]
    if not present:
        return outputs
    joined = present[0].a if len(present) == 1 else torch.cat([rank.a for rank in present])
    dtype = outputs[0].dtype
    inner = nn.functional.linear(x.to(dtype), joined.to(dtype))
    parts = iter(torch.split(inner, [len(rank.a) for rank in present], -1))
    for output, rank in zip(outputs, ranks, strict=True):
        if rank is not None:
            output.addmm_(next(parts), rank.b.to(dtype).t(), alpha=rank.scale)
    return outputs


def joined_factors(
    ranks: Sequence[LowRank | None], sizes: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """Return the factors of layers with one input as one pair `a (R, H)`, `b (O, R)`; None: no layer adds any.

    `a` has the layers' A, R the sum of their ranks; `b` has each layer's s B on its diagonal, O the sum of `sizes`, the
    layers' output features. So `b a x` is what all layers add to their outputs.
    """
    present = [rank for rank in ranks if rank is not None]
    if not present:
        return None
    a = torch.cat([rank.a for rank in present]).to(dtype)
    b = a.new_zeros(sum(sizes), len(a))
    row = column = 0
    for rank, size in zip(ranks, sizes, strict=True):
        if rank is not None:
            b[row : row + size, column : column + len(rank.a)] = rank.b * rank.scale
            column += len(rank.a)
        row += size
    return a, b
