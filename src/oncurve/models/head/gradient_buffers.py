"""Gradient buffers: a parameter's gradient is accumulated in a tensor that stays from update to update.

autograd allocates every gradient again, in pages that the system has just reclaimed from the last update's: at 494M
parameters a tenth of an update's time on a CPU. Here the first gradient of an update is written into the buffer of the
last one, and `.grad` is that buffer; later gradients are added to it as usual.

    backward -> gradient in the products' precision -> buffer (float32) == parameter.grad
    zero_grad      `.grad` is None; the buffer stays allocated, its contents are undefined

Only on the CPU: on other devices torch's allocator keeps blocks by itself, and a rollout can use them.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_NAME = "_oncurve_kept_gradient"
_ROWS_AT_ONCE = 512


class _KeptGradient:
    """The buffer of one parameter, allocated with its first gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._tensor: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that are allocated now."""
        return 0 if self._tensor is None else self._tensor.nbytes

    def of(self, parameter: Tensor) -> Tensor:
        """Return the buffer, in the parameter's shape, contiguous."""
        if self._tensor is None:
            self._tensor = torch.empty(parameter.shape, dtype=self.dtype)
        return self._tensor

    def take(self, parameter: Tensor) -> None:
        """After a gradient was accumulated: move what autograd allocated into the buffer."""
        found = parameter.grad
        if found is not None and found is not self._tensor and not found.is_sparse:
            parameter.grad = self.of(parameter).copy_(found)


class GradientByRows:
    """The gradient of `weight` in a backward pass that computes it some rows at a time, each row once.

    Where autograd accumulates it in a buffer, rows go there directly and `done` gives None: no second whole gradient is
    allocated. Otherwise (no buffer, a gradient that is sparse so far, `torch.autograd.grad`) they are gathered in a
    tensor of their own, which `done` gives.
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
        for first in range(0, len(piece), _ROWS_AT_ONCE):  # the sum is formed in float32: keep that copy small
            rows[first : first + _ROWS_AT_ONCE] += piece[first : first + _ROWS_AT_ONCE]

    def done(self) -> Tensor | None:
        """Return the gradient that the backward pass returns, once every row has been put."""
        if not self._direct:
            return self._rows
        self._weight.grad = self._rows
        return None


def keep_gradient(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """From now on accumulate the gradient of a parameter on the CPU in one buffer of `dtype`.

    On other devices this only sets the parameter's `grad_dtype`. A second call has no effect.
    """
    if parameter.device.type != "cpu":
        parameter.grad_dtype = dtype
    elif not hasattr(parameter, _NAME):
        kept = _KeptGradient(dtype)
        setattr(parameter, _NAME, kept)
        parameter.grad_dtype = None  # a wider gradient from autograd would cost one more pass over it
        parameter.register_post_accumulate_grad_hook(kept.take)  # type: ignore[no-untyped-call]


def kept_gradient(parameter: Tensor) -> Tensor | None:
    """Return the buffer that the gradient of `parameter` is accumulated in; None without one."""
    kept: _KeptGradient | None = getattr(parameter, _NAME, None)
    return None if kept is None else kept.of(parameter)


def kept_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes that the buffers of `parameters` take now, with or without a gradient in them."""
    kept: list[_KeptGradient | None] = [getattr(parameter, _NAME, None) for parameter in parameters]
    return sum(one.nbytes for one in kept if one is not None)


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype that the gradient of `parameter` is accumulated in."""
    kept: _KeptGradient | None = getattr(parameter, _NAME, None)
    if kept is not None:
        return kept.dtype
    wanted: torch.dtype | None = parameter.grad_dtype if parameter.is_leaf else None
    return wanted or parameter.dtype


def _is_accumulated(leaf: Tensor) -> bool:
    """Return whether the running backward pass accumulates into `.grad`, rather than returning gradients."""
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf under `torch.autograd.grad`
        return False
