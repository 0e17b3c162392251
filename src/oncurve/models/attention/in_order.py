"""Gradients of attention on a GPU that are added up in a fixed order, so that two runs give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IN_ORDER = True
"""Whether the backward kernels add up a query's gradient in a fixed order; without it atomic operations add in an order
that varies."""


@contextmanager
def in_order() -> Iterator[None]:
    """Within: backward kernels add in a fixed order. They read a setting of the whole process, in which no other
    thread computes on the device meanwhile.
    """
    memory: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    if IN_ORDER:
        torch.set_deterministic_debug_mode("error")
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


def differentiated_in_order(attend: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return `attend(*inputs)`; its gradient is computed `in_order`, from another forward pass of it."""
    attended: Tensor = _InOrder.apply(attend, *inputs)  # type: ignore[no-untyped-call]
    return attended


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attend: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.attend = attend
        ctx.save_for_backward(*inputs)
        return attend(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad(), in_order():
            return None, *torch.autograd.grad(ctx.attend(*inputs), inputs, grad)
