"""Requests to token loops, said shortly, and what the loop in graphs keeps."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from oncurve.models import DecodeRequest
from oncurve.models.causal import StopStrings
from oncurve.models.decode.graph_buffers import GraphBuffers
from oncurve.rollout.sampler import Sampler


def request(
    prompts: Sequence[Tensor],
    keys: Tensor,
    eos_ids: Sequence[int],
    longest: int,
    temperature: float = 0.8,
    stop: StopStrings | None = None,
    limits: Tensor | None = None,
    rows: int | None = None,
) -> DecodeRequest:
    """Completions of `prompts` by `keys (n,)`, at most `limits (n,)` tokens, `longest` where there are none."""
    limits = torch.full_like(keys, longest) if limits is None else limits
    by_group = keys.view(len(prompts), -1), limits.view(len(prompts), -1)
    return DecodeRequest(prompts, *by_group, longest, eos_ids, Sampler(temperature), stop, rows)


def graphs_of(buffers: GraphBuffers) -> dict[tuple[Hashable, ...], Callable[[], None]]:
    """Return the captured steps by model, rows, sampler and ends."""
    return {(model, key): graph for model, graphs in buffers.graphs.items() for key, graph in graphs.items()}
