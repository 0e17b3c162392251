"""Token statistics of a whole batch, by micro-batches, without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from oncurve.batching import micro_batches
from oncurve.models import CausalModel, token_stats
from oncurve.types import TokenStats, TrainBatch

OBSERVED = frozenset({"entropy"})
"""Statistics that every update logs, computed without a gradient unless the loss needs one."""


@torch.no_grad()
def scored_stats(
    model: CausalModel,
    batch: TrainBatch,
    temperature: float,
    tokens_per_micro_batch: int,
    want: frozenset[str] = frozenset(),
) -> TokenStats:
    """Return log-probs `(B, T)` of the batch's completions under `model`, and the entropy if it is in `want`."""
    pieces = [
        token_stats(model, micro, temperature=temperature, observe=want & OBSERVED)
        for micro in micro_batches(batch, tokens_per_micro_batch)
    ]
    return of_the_whole(batch, pieces, want)


def of_the_whole(batch: TrainBatch, pieces: Sequence[TokenStats], want: frozenset[str]) -> TokenStats:
    """Return the statistics of the batch's micro-batches as its own, padded to its width."""
    width, device = batch.completion_ids.shape[1], batch.completion_ids.device
    columns = ["logprobs", *(want & OBSERVED)]
    wide = [[pad(getattr(piece, name), (0, width - piece.logprobs.shape[1])) for piece in pieces] for name in columns]
    return TokenStats(**{name: torch.cat(found).to(device) for name, found in zip(columns, wide, strict=True)})
