"""oncurve's forms for a GPU, chosen for the pretended one: all that the tests know of oncurve's inside.

compiled functions   the kernels that the compiler makes of them, `COMPILED`
packed training      FlexAttention with its mask written out, counted as the kernels that it is
decoding             captured as `pretended_gpu.capture` does
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as torch_adamw

from fakes import pretended_gpu
from oncurve.learner.optimizer import adamw
from oncurve.machine import compiled
from oncurve.models import backend, network
from oncurve.models.attention import flex
from oncurve.ops import at_least_float32

COMPILED = {"_weights": 4}
"""Kernels of a compiled function where the compiler makes more than one."""


def pretend(patch: pytest.MonkeyPatch) -> pretended_gpu.Captures:
    """Let oncurve take its forms for a GPU on the pretended device: the graphs that it captures from here on."""
    pretended_gpu.device()
    captures = pretended_gpu.Captures()
    on_gpu = {pretended_gpu.NAME, "cuda"}
    patch.setattr(compiled, "on_gpu", lambda where: where.type in on_gpu)
    patch.setattr(torch, "compile", lambda function, **_: fused(function))
    patch.setattr(network, "packed_context", packed_context)
    patch.setattr(flex, "kernel_for", lambda where: written_out)
    patch.setattr(backend, "capture_on", lambda where: captures if where.type in on_gpu else None)
    for name, backward in (("scaled_dot_product_attention", 3), ("rms_norm", 2)):
        patch.setattr(nn.functional, name, pretended_gpu.fused(getattr(nn.functional, name), name, 1, backward))
    patch.setattr(adamw, "adamw", lambda *parts, **options: torch_adamw(*parts, **{**options, "fused": True}))
    patch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    return captures


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    return pretended_gpu.fused(function, function.__name__, COMPILED.get(function.__name__, 1))


def packed_context(device: torch.device) -> type[flex.PackedContext]:
    return flex.FlexContext if device.type == pretended_gpu.NAME else flex.PackedContext


def written_out(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float, enable_gqa: bool) -> Tensor:
    """FlexAttention's result by all scores."""
    zero, tokens = torch.zeros((), dtype=torch.int64), torch.arange(query.shape[2], device=query.device)
    with pretended_gpu.watch():
        allowed = block_mask.mask_mod(zero, zero, tokens[:, None], tokens[None, :])
    return _attention(query, key, value, allowed, scale)


def _scores(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    shared = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
    scores = at_least_float32(query @ key.transpose(2, 3)) * scale
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1).to(value.dtype) @ value


_attention = pretended_gpu.fused(_scores, "flex_attention", 1, 2)
