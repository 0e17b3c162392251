"""Leaf modules replaced in place: the same parameters under the same names, a better function.

transformers writes RMS norms out in float32 whatever the model computes in. `F.rms_norm` gives the same bits in
float32 and bf16 (tested), takes fewer steps, and in float64 is exact, so gradients can be judged to 1e-10. Its backward
is written out here: on the CPU torch differentiates it step by step, a dozen passes over memory where six will do.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from oncurve.ops import at_least_float32

__all__ = ["RMSNorm", "keeps_a_wide_residual", "narrow_positions", "replace_norms"]


_AT_ONCE = 1 << 18
"""Numbers that the backward of a norm works on at a time: 1 MiB in float32, which stays in a core's second cache."""


class _RMSNorm(torch.autograd.Function):
    """With x̂ = x / r, r = sqrt(mean(x²) + eps), g = ∂y · w: ∂x = (g - x̂ · mean(g x̂)) / r and ∂w = Σ ∂y · x̂."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return _rms_norm(x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        size = weight.shape[0]
        raised = at_least_float32(weight)
        rows, arrived, by_weight = x.reshape(-1, size), grad.reshape(-1, size), torch.zeros_like(raised)
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        for start in range(0, rows.shape[0], max(1, _AT_ONCE // size)):
            at = slice(start, start + max(1, _AT_ONCE // size))
            normed = _raised_copy(rows[at])
            inverse = torch.linalg.vector_norm(normed, dim=-1, keepdim=True).square_().div_(size).add_(ctx.eps).rsqrt_()
            normed.mul_(inverse)
            change = _raised_copy(arrived[at])
            by_weight += torch.linalg.vecdot(change, normed, dim=0)
            change.mul_(raised)
            along = torch.linalg.vecdot(change, normed).div_(size).unsqueeze(-1)
            out[at] = change.addcmul_(normed, along, value=-1).mul_(inverse)
        return out.view(x.shape), by_weight.to(weight.dtype), None


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype == weight.dtype:
        return nn.functional.rms_norm(x, weight.shape, weight, eps)
    if x.device.type != "cpu":
        return nn.functional.rms_norm(x, weight.shape, None, eps).to(weight.dtype).mul_(weight)
    norm = torch.linalg.vector_norm(
        x, dim=-1, keepdim=True
    )  # torch's own takes three steps more, each a few rows' worth
    inverse = torch.addcmul(_scalar(eps, x.dtype), norm, norm, value=1 / weight.shape[0]).rsqrt_()
    return (x * inverse).to(weight.dtype).mul_(weight)


@functools.cache
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _raised_copy(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) · weight`, over the last dimension, in the weight's dtype whatever `x` comes in."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`(..., H)` -> `(..., H)`."""
        if not torch.is_grad_enabled():  # a decode step has many norms of few rows, and calling a Function costs more
            return _rms_norm(x, self.weight, self.eps)
        normed: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


def keeps_a_wide_residual(body: nn.Module) -> bool:
    """Whether `body` may be given float32 embeddings though its weights are half precision.

    All its norms are ours then: they take the float32 sum of all layers so far, and hand on half precision.
    """
    norms = [part for part in body.modules() if "Norm" in type(part).__name__]
    return bool(norms) and all(isinstance(part, RMSNorm) for part in norms)


def narrow_positions(body: nn.Module) -> list[RemovableHandle]:
    """Rotary tables come in the weights' dtype, not in that of a wide residual; else queries and keys would be wide.

    Returns the hooks that see to it: `remove()` of each leaves `body` as it was.
    """
    dtype_of = next(body.parameters())

    def narrowed(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if arguments and isinstance(arguments[0], Tensor) and arguments[0].dtype != dtype_of.dtype:
            return arguments[0][:0].to(dtype_of.dtype), *arguments[1:]
        return None

    return [
        part.register_forward_pre_hook(narrowed)
        for name, part in body.named_modules()
        if name.endswith("rotary_emb") and not part._forward_pre_hooks
    ]


def replace_norms(module: nn.Module, undo: ExitStack | None = None) -> int:
    """Replace the RMS norms below `module` whose output stays as it is; returns how many.

    `undo.close()` puts back what was there.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin(child)
            if twin is not None:
                if undo is not None:
                    undo.callback(setattr, parent, name, child)
                setattr(parent, name, twin)
                replaced += 1
    return replaced


@torch.no_grad()
def _twin(norm: nn.Module) -> RMSNorm | None:
    """Its replacement, or None: not an RMS norm, or one that computes something else (such as `1 + weight`)."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not type(norm).__name__.endswith("RMSNorm") or isinstance(norm, RMSNorm) or list(norm.children()):
        return None
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or not isinstance(eps, float):
        return None
    if len(list(norm.parameters())) != 1 or norm._forward_hooks or norm._forward_pre_hooks:
        return None
    twin = RMSNorm(weight, eps).train(norm.training)
    example = torch.linspace(-2.0, 3.0, 3 * len(weight), device=weight.device).view(3, -1).to(weight.dtype)
    close = 1e-2 if weight.dtype.itemsize < 4 else 1e-5
    return twin if torch.allclose(norm(example), twin(example), rtol=close, atol=close) else None
