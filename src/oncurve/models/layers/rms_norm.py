"""RMS norms replaced in place: the same parameters under the same names, a faster function.

transformers computes RMS norms in float32, step by step. `F.rms_norm` gives the same bits in float32 and bf16 (tested),
takes fewer steps, and is exact in float64, so gradients can be compared to 1e-10. Its backward is written out here: on
the CPU torch differentiates it step by step, with a dozen passes over memory instead of six.
On a GPU both passes are compiled: a kernel each, and two sums for the weight's gradient.
"""

import functools
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from oncurve.machine.compiled import compiled_sum
from oncurve.ops import at_least_float32

_AT_ONCE = 1 << 18
"""Numbers in one block of a norm's backward on a CPU: 1 MiB in float32, which stays in a core's L2 cache."""

_PART = 64
"""Rows that a GPU adds up at once for a weight's gradient."""


class _RMSNorm(torch.autograd.Function):
    """With x̂ = x / r, r = sqrt(mean(x²) + eps), g = ∂y · w: ∂x = (g - x̂ · mean(g x̂)) / r and ∂w = Σ ∂y · x̂."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, inverse = _rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        if inverse is not None:
            shape = *inverse.shape[:-1], len(weight)
            by_x, parts = _differentiated(
                *(x.reshape(shape), grad.reshape(shape), inverse), weight=weight, with_weight=ctx.needs_input_grad[1]
            )
            return by_x.view(x.shape), None if parts is None else parts.sum(0), None
        return *_differentiated_in_cache(x, grad, weight, ctx.eps, ctx.needs_input_grad[1]), None


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor | None]:
    """Return `x` normed, and off the CPU `1 / r` of each row: without it, the backward would take a kernel more."""
    if x.device.type != "cpu":
        normed, inverse = _normed(x.flatten(0, -2) if x.is_contiguous() else x, weight=weight, eps=eps)
        return normed.view(x.shape), inverse
    if x.dtype == weight.dtype:
        return nn.functional.rms_norm(x, weight.shape, weight, eps), None
    return rows_normed(x, weight, eps), None


def rows_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x` normed, up to the last bit: torch's own takes three more steps, each as long as a few rows."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = torch.addcmul(_scalar(eps, x.dtype), norm, norm, value=1 / weight.shape[0]).rsqrt_()
    return (x * inverse).to(weight.dtype).mul_(weight)


@compiled_sum
def _normed(x: Tensor, *, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * inverse).to(weight.dtype) * weight, inverse


@compiled_sum
def _differentiated(
    x: Tensor, grad: Tensor, inverse: Tensor, *, weight: Tensor, with_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in `x` and, where wanted, in the weight: its sums over `_PART` rows each."""
    arrived = grad.to(inverse.dtype)
    normed, change = x * inverse, arrived * weight
    by_x = (change - normed * (change * normed).mean(-1, keepdim=True)) * inverse
    if not with_weight:
        return by_x.to(x.dtype), None
    rows = (arrived * normed).flatten(0, -2)
    whole = nn.functional.pad(rows, (0, 0, 0, -len(rows) % _PART))
    return by_x.to(x.dtype), whole.view(-1, _PART, rows.shape[1]).sum(1)


def _differentiated_in_cache(
    x: Tensor, grad: Tensor, weight: Tensor, eps: float, with_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the same on a CPU, as many rows at a time as stay in its cache."""
    size = weight.shape[0]
    raised = at_least_float32(weight)
    rows, arrived = x.reshape(-1, size), grad.reshape(-1, size)
    by_weight = torch.zeros_like(raised) if with_weight else None
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    at_once = max(1, _AT_ONCE // size)
    for start in range(0, rows.shape[0], at_once):
        at = slice(start, start + at_once)
        normed = _raised_copy(rows[at])
        inverse = torch.linalg.vector_norm(normed, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        normed.mul_(inverse)
        change = _raised_copy(arrived[at])
        if by_weight is not None:
            by_weight += torch.linalg.vecdot(change, normed, dim=0)
        change.mul_(raised)
        along = torch.linalg.vecdot(change, normed).div_(size).unsqueeze(-1)
        out[at] = change.addcmul_(normed, along, value=-1).mul_(inverse)
    return out.view(x.shape), None if by_weight is None else by_weight.to(weight.dtype)


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
        """Return `(..., H)` -> `(..., H)`."""
        if not torch.is_grad_enabled():  # a decode step has many norms of few rows: a Function costs more
            return _rms_norm(x, self.weight, self.eps)[0]
        normed: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


def keeps_a_wide_residual(body: nn.Module) -> bool:
    """Return whether `body` may take float32 embeddings although its weights are half precision.

    That is so where all its norms are `RMSNorm`: they take the float32 residual, and return half precision.
    """
    norms = [part for part in body.modules() if "Norm" in type(part).__name__]
    return bool(norms) and all(isinstance(part, RMSNorm) for part in norms)


def narrow_positions(body: nn.Module) -> list[RemovableHandle]:
    """Make rotary tables in the weights' dtype, not in that of a wide residual: queries and keys stay narrow.

    Returns the hooks; `remove()` of each restores `body`.
    """
    narrowed = _Narrowed(body)
    return [
        part.register_forward_pre_hook(narrowed)
        for name, part in body.named_modules()
        if name.endswith("rotary_emb") and not part._forward_pre_hooks
    ]


class _Narrowed:
    """The hook of `narrow_positions`. A copy of a body has a copy of it, which reads the copy's weights."""

    def __init__(self, body: nn.Module) -> None:
        self._body = body

    def __call__(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        dtype = next(self._body.parameters()).dtype  # a sharded parameter is another one while it is whole
        if arguments and isinstance(arguments[0], Tensor) and arguments[0].dtype != dtype:
            return arguments[0][:0].to(dtype), *arguments[1:]
        return None


def replace_norms(module: nn.Module, undo: ExitStack | None = None) -> None:
    """Replace the RMS norms below `module` whose output stays the same. `undo.close()` restores the module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin(child)
            if twin is not None:
                if undo is not None:
                    undo.callback(setattr, parent, name, child)
                setattr(parent, name, twin)


@torch.no_grad()
def _twin(norm: nn.Module) -> RMSNorm | None:
    """Return its replacement, or None: not an RMS norm, or one that computes something else (such as `1 + weight`)."""
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
