"""Gradients by central differences in float64: slow, and right for any smooth function.

∂f/∂x_k ≈ (f(x + h e_k) - f(x - h e_k)) / 2h,  error O(h²)
"""

from collections.abc import Callable

import torch
from torch import Tensor


def finite_difference_gradient(function: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-6) -> Tensor:
    """Gradient of a scalar function of a float64 tensor of any shape."""
    assert x.dtype == torch.float64, "central differences need float64"
    gradient = torch.zeros_like(x)
    for index in range(x.numel()):
        shift = torch.zeros_like(x).reshape(-1)
        shift[index] = step
        shift = shift.reshape(x.shape)
        high, low = function(x.detach() + shift), function(x.detach() - shift)
        gradient.reshape(-1)[index] = (high.detach() - low.detach()) / (2 * step)
    return gradient


def autograd_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The same gradient by autograd, to compare with."""
    leaf = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    return gradient
