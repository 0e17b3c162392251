"""oncurve's forms for a GPU, chosen for the pretended one: all that the tests know of oncurve's inside.

compiled functions   the kernels that the compiler makes of each, `COMPILED`
packed training      torch's flash kernels by the oracle's functions
decoding             the functions that Triton's kernels equal; `pretended_gpu.Captures` in place of CUDA graphs
optimizer            torch's fused AdamW, as on CUDA
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.adamw import adamw as torch_adamw

from fakes import pretended_gpu
from fakes.pretended_gpu import fused
from oncurve.learner.optimizer import adamw
from oncurve.machine import compiled
from oncurve.models import backend, network
from oncurve.models.attention import FlashContext, PackedContext, flash
from oncurve.models.decode import paged_attention
from oracles.plain_flash import plain_backward, plain_forward

COMPILED = {"_differentiated": 3, "_sums": 2}
"""Kernels of a compiled function where they are not one: a sum over rows takes two, a maximum before a sum one more."""

FLASH_BACKWARD = 6
"""A dot product per query, zeros to add to, the gradients, the queries' own cast; sums over grouped heads of two."""

ATTEND = 2
"""Attention over a row's shares of pages, and their join."""


def pretend(patch: pytest.MonkeyPatch) -> pretended_gpu.Captures:
    """Let oncurve take its forms for a GPU on the pretended device: the graphs that it captures from here on."""
    pretended_gpu.device()
    captures = pretended_gpu.Captures()
    patch.setattr(compiled, "on_gpu", on_gpu)
    patch.setattr(torch, "compile", lambda function, **_: _compiled(function))
    patch.setattr(network, "packed_context", lambda device: FlashContext if on_gpu(device) else PackedContext)
    kernels = fused(plain_forward, "flash"), fused(plain_backward, "flash backward", FLASH_BACKWARD)
    patch.setattr(FlashContext, "kernels", flash.Kernels(*kernels))
    decoding = fused(paged_attention.write, "write"), fused(paged_attention.attend, "attend", ATTEND)
    patch.setattr(paged_attention, "functions_for", lambda *_: decoding)
    patch.setattr(backend, "capture_on", lambda device: captures if on_gpu(device) else None)
    patch.setattr(adamw, "adamw", lambda *parts, **options: torch_adamw(*parts, **{**options, "fused": True}))
    for name, backward in (("scaled_dot_product_attention", 3), ("rms_norm", 2)):
        patch.setattr(nn.functional, name, fused(getattr(nn.functional, name), name, 1, backward))
    patch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    return captures


def on_gpu(device: torch.device) -> bool:
    return device.type == pretended_gpu.NAME


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return fused(function, function.__name__, COMPILED.get(function.__name__, 1))
