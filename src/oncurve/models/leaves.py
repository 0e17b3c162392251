"""Leaf modules replaced in place: the same parameters under the same names, a better function.

transformers writes RMS norms out in float32 whatever the model computes in. `F.rms_norm` gives the same bits in
float32 and bf16 (tested), takes fewer steps, and in float64 is exact, so gradients can be judged to 1e-10.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RMSNorm", "replace_norms"]


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) · weight`, over the last dimension."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`(..., H)` -> `(..., H)`."""
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def replace_norms(module: nn.Module) -> int:
    """Replace the RMS norms below `module` whose output stays as it is; returns how many."""
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin(child)
            if twin is not None:
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
