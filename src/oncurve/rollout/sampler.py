"""One token a row from logits: inverse CDF, one uniform a row, the log-probability for free.

The distribution is `π = softmax(logits / temperature)`, and the token for uniform `u` is the first `i` with
`Σ_{j≤i} π_j > u · Σ_j π_j`. `torch.multinomial` draws V exponentials a row from one serial generator; this reads the
row twice (softmax, block sums) and then looks at one block of it.

Covered: any V; tokens of probability zero are never drawn; `u` next to 0 or 1.
Not covered: top-p, top-k, min-p. They are refused for training: the learner could not recompute the kept set.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["greedy", "sample"]

# Sums of 64 neighbours first, then a search in one block: up to 2 blocks a single cumulative sum is as fast.
_BLOCK = 64


def sample(logits: Tensor, uniforms: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Token ids `(n,)` int64 and their log-probabilities `(n,)` under the distribution they were drawn from.

    logits       (n, V) float32 or float64; -inf is a token that cannot come
    uniforms     (n,) float64 in (0, 1), see `oncurve.randomness`
    temperature  > 0, or 0 for `greedy`

    The log-probability is `log softmax(logits / temperature)[id]`, in the logits' precision: what
    `ops.token_logprobs(logits, ids, temperature)` gives the learner. A row with a NaN gives a NaN log-probability
    and an arbitrary valid id; the caller must look at the log-probabilities before it believes the ids.
    """
    if temperature == 0:
        return greedy(logits)
    probabilities = torch.softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    search = _search if logits.shape[1] <= 2 * _BLOCK else _search_blocks
    ids = search(probabilities, uniforms[:, None])
    return ids.squeeze(1), probabilities.gather(1, ids).log_().squeeze(1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest ids `(n,)` of logits `(n, V)`, and their log-probabilities `(n,)` at temperature 1.

    Temperature 0 has no useful log-probability of its own (it is 0), so that of the unscaled model is recorded.
    """
    ids = logits.argmax(dim=-1, keepdim=True)
    return ids.squeeze(1), torch.softmax(logits, dim=-1).gather(1, ids).log_().squeeze(1)


def _search(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token `(n, 1)` of each row: one cumulative sum of `weights` (n, V) in float64."""
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    return _first_above(cumulative, uniforms * cumulative[:, -1:])[0]


def _search_blocks(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The same in two levels: the block by its sum, then the token in it. The last block may be shorter."""
    vocabulary = weights.shape[1]
    whole = vocabulary // _BLOCK * _BLOCK
    sums = weights[:, :whole].view(len(weights), -1, _BLOCK).sum(dim=2)
    if whole < vocabulary:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    cumulative = sums.cumsum(dim=1, dtype=torch.float64)
    block, target = _first_above(cumulative, uniforms * cumulative[:, -1:])
    # Never negative: the sum before the first block above the target is not above it.
    target = target - cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    members = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, members.clamp(max=vocabulary - 1)).masked_fill_(members >= vocabulary, 0.0)
    member = _first_above(inside.cumsum(dim=1, dtype=torch.float64), target)[0]
    return (block * _BLOCK + member).clamp_(max=vocabulary - 1)


def _first_above(cumulative: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first `i` `(n, 1)` with `cumulative[i] > target`, and the target that was used `(n, 1)`.

    The target is held below the last sum, or rounding could push it past every token. The token found has itself
    raised the sum above a target that is at least 0 and at least the sum before it: its weight is not zero.
    """
    last = cumulative[:, -1:]
    target = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    # NaN is above every sum: clamps keep the index in the row, for the caller to find the NaN there.
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1), target
