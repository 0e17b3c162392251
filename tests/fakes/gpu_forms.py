"""oncurve's forms for a GPU, chosen for the pretended one: all that the tests know of oncurve's inside.

compiled functions   the kernels that the compiler makes of each, `COMPILED`
packed training      torch's flash kernels by the oracle's functions
decoding             the functions that Triton's kernels equal; `pretended_gpu.Captures` in place of CUDA graphs
sampler              its kernel in plain torch
optimizer            torch's fused AdamW, as on CUDA
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as torch_adamw

from fakes import pretended_gpu
from fakes.pretended_gpu import fused
from oncurve.learner.optimizer import adamw
from oncurve.machine import compiled
from oncurve.models import network
from oncurve.models.attention import flash
from oncurve.models.attention.flash import FlashContext
from oncurve.models.attention.packed_rows import PackedContext
from oncurve.models.decode import paged_attention
from oncurve.ops import at_least_float32
from oncurve.rollout import sampler
from oracles.plain_flash import plain_backward, plain_forward

COMPILED = {"_differentiated": 2}
"""Kernels of a compiled function where they are not one."""

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
    patch.setattr(sampler, "on_gpu", on_gpu)
    sums = SimpleNamespace(tops_and_sums=fused(tops_and_sums, "tops and sums"))
    patch.setitem(sys.modules, "oncurve.rollout.triton_sums", sums)
    patch.setattr(network, "capture_on", lambda device: captures if on_gpu(device) else None)
    patch.setattr(adamw, "adamw", lambda *parts, **options: torch_adamw(*parts, **{**options, "fused": True}))
    for name, backward in (("scaled_dot_product_attention", 3), ("rms_norm", 2)):
        patch.setattr(nn.functional, name, fused(getattr(nn.functional, name), name, 1, backward))
    patch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    return captures


def on_gpu(device: torch.device) -> bool:
    return device.type == pretended_gpu.NAME


def tops_and_sums(logits: Tensor, block: int, temperature: float) -> tuple[Tensor, Tensor]:
    blocks = nn.functional.pad(at_least_float32(logits), (0, -logits.shape[1] % block), value=-torch.inf)
    blocks = blocks.unflatten(1, (-1, block))
    tops = blocks.amax(2)
    return tops, ((blocks - tops[..., None]) / temperature).exp().sum(2)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return fused(function, function.__name__, COMPILED.get(function.__name__, 1))
