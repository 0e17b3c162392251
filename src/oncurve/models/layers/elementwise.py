"""Rotation and gated product with backward passes of their own: one kernel each on a GPU, and less is kept.

    rotation        y = x · cos + swap(x) · sin
    gated product   y = silu(gate) · up, alone or times matrices

A rotation keeps its tables, which all layers share. A gated product keeps gate and up. autograd would keep silu(gate)
and the product too, a third of a layer's activations; the backward computes both again. On the CPU values and gradients
have the bits that autograd gives.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from oncurve.machine.compiled import compiled

Rotation = tuple[Tensor, Tensor]
"""`(N, 1, d)` cosines, and sines whose first half is negative: factors of a head, and of its swapped halves."""


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Return heads `x (N, h, d)`, rotated."""
    if not torch.is_grad_enabled():  # a decode step rotates few rows: a Function costs more
        return _rotate(x, *rotation)
    turned: Tensor = _Rotated.apply(x, *rotation)  # type: ignore[no-untyped-call]
    return turned


def gated_product(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) · up` of two tensors of one shape."""
    if not torch.is_grad_enabled():
        return _gate(gate, up)
    product: Tensor = _Gated.apply(gate, up)  # type: ignore[no-untyped-call]
    return product


def gated_products(gate: Tensor, up: Tensor, matrices: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gated product `(N, I)` times each matrix `(O, I)`: `(N, O)` each."""
    if not torch.is_grad_enabled():
        product = _gate(gate, up)
        return tuple(nn.functional.linear(product, matrix) for matrix in matrices)
    out: tuple[Tensor, ...] = _Gated.apply(gate, up, *matrices)  # type: ignore[no-untyped-call]
    return out


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotate(x, cosines, sines)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _rotate_back(grad, *ctx.saved_tensors), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, *matrices: Tensor) -> Tensor | tuple[Tensor, ...]:
        ctx.save_for_backward(gate, up, *matrices)
        product = _gate(gate, up)
        return tuple(nn.functional.linear(product, matrix) for matrix in matrices) if matrices else product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, *matrices = ctx.saved_tensors
        by_product, wanted = grads[0], ctx.needs_input_grad[2:]
        for number, matrix in enumerate(matrices):
            by_product = by_product + grads[number] @ matrix if number else by_product @ matrix
        by_gate, by_up, product = _gate_back(gate, up, by_product, any(wanted))
        pairs = zip(grads, wanted, strict=False) if matrices else ()
        return by_gate, by_up, *(grad.t() @ product if want and product is not None else None for grad, want in pairs)


@compiled
def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return (x * cosines).add_(_halves_swapped(x) * sines)


@compiled
def _rotate_back(grad: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    return (grad * cosines).add_(_halves_swapped(grad * sines))


def _halves_swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second, first], -1)


@compiled
def _gate(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


@compiled
def _gate_back(gate: Tensor, up: Tensor, grad: Tensor, with_product: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients in gate and up, and the product where it is wanted."""
    opened = nn.functional.silu(gate)
    by_gate = torch.ops.aten.silu_backward(grad * up, gate)
    return by_gate, grad * opened, opened * up if with_product else None
