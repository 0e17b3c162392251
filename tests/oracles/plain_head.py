"""All logits at once, written out: what the fused head must agree with. Imports nothing from oncurve."""

import torch
from torch import Tensor


def plain_logprobs(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens and entropies of the distributions, `(N,)` each."""
    logits = hidden @ weight.t()
    if logits.dtype != torch.float64:
        logits = logits.float()
    table = torch.log_softmax(logits / temperature, -1)
    return table[torch.arange(len(ids)), ids], -(table.exp() * table).sum(-1)
