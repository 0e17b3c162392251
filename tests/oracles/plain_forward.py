"""The slow, obvious twin of every fast forward: each row alone, prompt and completion in full, no padding, no cache.

transformers' own attention over torch's, so nothing of oncurve's takes part (its eager one takes softmax in float32
whatever the model computes in: too coarse for 1e-10). No imports from oncurve.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def plain_attention(module: Any):
    """Within: the module attends as transformers has it."""
    if not hasattr(module, "config"):
        yield
        return
    before = module.config._attn_implementation
    module.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        module.config._attn_implementation = before


def row_logits(module: nn.Module, prompt: Tensor, completion: Tensor) -> Tensor:
    """Logits `(len(completion), V)` that predict each completion token."""
    with plain_attention(module):
        result = module(torch.cat([prompt, completion])[None])
    logits = result if isinstance(result, Tensor) else result.logits
    return logits[0, len(prompt) - 1 : len(prompt) + len(completion) - 1]


def plain_logits(
    module: nn.Module, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
) -> Tensor:
    """Logits `(N, V)` that predict each completion token, rows one after another."""
    rows = zip(group_ids.tolist(), completion_ids, lengths.tolist(), strict=True)
    return torch.cat([row_logits(module, prompts[group], ids[:length]) for group, ids, length in rows])


def next_logits(module: nn.Module, prompt: Tensor, written: Sequence[int]) -> Tensor:
    """Logits `(V,)` of what comes after `prompt` and `written`."""
    with plain_attention(module), torch.no_grad():
        result = module(torch.cat([prompt, torch.tensor(list(written), dtype=torch.long)])[None])
    return (result if isinstance(result, Tensor) else result.logits)[0, -1]
