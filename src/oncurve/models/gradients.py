"""Where a parameter's gradient is accumulated: a tensor that stays from update to update.

autograd makes every gradient anew, in pages that the system has just taken back from the last update's: at 494M
parameters a tenth of an update's time on a CPU. Here the first gradient of an update is written into the tensor of the
last one, and `.grad` is that tensor; what comes after is added to it as ever.

    backward -> gradient in the products' precision -> kept tensor (float32) == parameter.grad
    zero_grad      `.grad` is None; the kept tensor waits, its numbers mean nothing

Only on the CPU: elsewhere torch's allocator keeps blocks by itself, and a rollout can use them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["GradientByRows", "gradient_dtype", "keep_gradient", "kept_bytes", "kept_gradient"]

_NAME = "_oncurve_kept_gradient"
_ROWS_AT_ONCE = 512


class _Kept:
    """The tensor of one parameter, made when its first gradient comes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._tensor: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """What it takes now."""
        return 0 if self._tensor is None else self._tensor.nbytes

    def of(self, parameter: Tensor) -> Tensor:
        """The tensor, in the parameter's shape, contiguous."""
        if self._tensor is None:
            self._tensor = torch.empty(parameter.shape, dtype=self.dtype)
        return self._tensor

    def take(self, parameter: Tensor) -> None:
        """After a gradient was accumulated: what autograd made anew goes into the tensor."""
        found = parameter.grad
        if found is not None and found is not self._tensor and not found.is_sparse:
            parameter.grad = self.of(parameter).copy_(found)


class GradientByRows:
    """The gradient of `weight` in a backward pass that makes it some rows at a time: each row once.

    Where autograd accumulates it in a kept tensor, rows go there at once and `done` gives None: no whole gradient is
    made beside. Elsewhere (nothing is kept, the gradient is sparse so far, `torch.autograd.grad` asks for it) they are
    gathered in a tensor of their own, which `done` gives.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._add = weight, False
        kept = kept_gradient(weight)
        self._direct = kept is not None and _is_accumulated(weight) and (weight.grad is None or weight.grad is kept)
        if self._direct and kept is not None:
            self._add, self._rows = weight.grad is not None, kept
        else:
            self._rows = torch.empty_like(weight, dtype=gradient_dtype(weight))

    def put(self, start: int, piece: Tensor) -> None:
        """`piece` is the gradient of as many rows from `start`."""
        rows = self._rows[start : start + len(piece)]
        if not self._add:
            rows.copy_(piece)
            return
        for first in range(0, len(piece), _ROWS_AT_ONCE):  # by way of float32, which is not to be a large copy
            rows[first : first + _ROWS_AT_ONCE] += piece[first : first + _ROWS_AT_ONCE]

    def done(self) -> Tensor | None:
        """Every row has been put; what the backward pass returns as the gradient."""
        if not self._direct:
            return self._rows
        self._weight.grad = self._rows
        return None


def keep_gradient(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """From now on the gradient of a parameter on the CPU is accumulated in one tensor of `dtype` that stays.

    Nothing is done for a parameter elsewhere but to set its `grad_dtype`, nor twice.
    """
    if parameter.device.type != "cpu":
        parameter.grad_dtype = dtype
    elif not hasattr(parameter, _NAME):
        kept = _Kept(dtype)
        setattr(parameter, _NAME, kept)
        parameter.grad_dtype = None  # autograd is not to widen it: that would be one more pass over it
        parameter.register_post_accumulate_grad_hook(kept.take)  # type: ignore[no-untyped-call]


def kept_gradient(parameter: Tensor) -> Tensor | None:
    """The tensor that the gradient of `parameter` is accumulated in; None where none is kept."""
    kept: _Kept | None = getattr(parameter, _NAME, None)
    return None if kept is None else kept.of(parameter)


def kept_bytes(parameters: Iterable[Tensor]) -> int:
    """What the kept gradients of `parameters` take by now, with or without a gradient in them."""
    kept: list[_Kept | None] = [getattr(parameter, _NAME, None) for parameter in parameters]
    return sum(one.nbytes for one in kept if one is not None)


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """What the gradient of `parameter` is accumulated in."""
    kept: _Kept | None = getattr(parameter, _NAME, None)
    if kept is not None:
        return kept.dtype
    wanted: torch.dtype | None = parameter.grad_dtype if parameter.is_leaf else None
    return wanted or parameter.dtype


def _is_accumulated(leaf: Tensor) -> bool:
    """Whether the backward pass that is running accumulates into `.grad`, rather than giving gradients back."""
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # of a leaf under `torch.autograd.grad`, it says
        return False
