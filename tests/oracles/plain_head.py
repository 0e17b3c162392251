"""All logits at once, written out: what the fused head must agree with. Imports nothing from oncurve."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.plain_truncation import masked


def plain_logprobs(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, sets: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens and entropies of the distributions, `(N,)` each, over the tokens' `sets`."""
    logits = hidden @ weight.t()
    logits = logits if sets is None else masked(logits, sets)
    if logits.dtype != torch.float64:
        logits = logits.float()
    table = torch.log_softmax(logits / temperature, -1)
    return table[torch.arange(len(ids)), ids], -(table.exp() * table).sum(-1)
