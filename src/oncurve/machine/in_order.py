"""Gradients on a GPU that are added up in a fixed order, so that two runs give the same bits.

Most of torch's kernels have one order. Those of attention's backward and of the backward of a lookup add by atomic
operations, in an order that varies, unless torch is told otherwise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from oncurve.machine import compiled


@contextmanager
def in_order() -> Iterator[None]:
    """Within: backward kernels add in a fixed order. They read a setting of the whole process, in which no other
    thread computes on the device meanwhile.
    """
    memory: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


def differentiated_in_order(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return `function(*inputs)`. On a GPU its gradient is added up in order, after another forward pass of it."""
    if not (torch.is_grad_enabled() and compiled.on_gpu(inputs[0].device)):
        return function(*inputs)
    result: Tensor = _InOrder.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return result


@contextmanager
def lookups_in_order(module: nn.Module) -> Iterator[None]:
    """Within: the gradient of lookups in the embeddings of `module` is added up in order, of those on a GPU."""
    plain = nn.Embedding.forward
    embeddings = (part for part in module.modules() if isinstance(part, nn.Embedding))
    usual = (part for part in embeddings if part.max_norm is None and not part.scale_grad_by_freq)
    parts = {part for part in usual if compiled.on_gpu(part.weight.device)}

    def forward(part: nn.Embedding, ids: Tensor) -> Tensor:
        found: Tensor = _Lookup.apply(part.weight, part.padding_idx, ids) if part in parts else plain(part, ids)  # type: ignore[no-untyped-call]
        return found

    if parts:
        nn.Embedding.forward = forward  # type: ignore[assignment, method-assign]  # a scaled one calls it, too
    try:
        yield
    finally:
        nn.Embedding.forward = plain  # type: ignore[method-assign]


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            result = ctx.function(*inputs)
        try:
            with in_order():
                return None, *torch.autograd.grad(result, inputs, grad, retain_graph=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a kernel that has no other order than its own, such as a matrix product's
            return None, *torch.autograd.grad(result, inputs, grad)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, padding: int | None, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding = len(weight), padding
        return nn.functional.embedding(ids, weight, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        with in_order():
            padding = -1 if ctx.padding is None else ctx.padding
            return torch.ops.aten.embedding_dense_backward(grad, ids, ctx.rows, padding, False), None, None
