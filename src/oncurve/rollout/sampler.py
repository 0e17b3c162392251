"""One token per row from logits: inverse CDF, one uniform per row, and the token's log-probability.

The distribution is `π = softmax(logits / temperature)`, and the token for uniform `u` is the first `i` with
`Σ_{j≤i} π_j > u · Σ_j π_j`. `torch.multinomial` draws V exponentials a row from one serial generator; this sums the row
by blocks and then searches one block.

Covered: any V; tokens of probability zero are never drawn; `u` next to 0 or 1. With top-k, top-p or min-p:
`truncation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.machine.compiled import on_gpu

# Sums of 64 neighbours first, then a search in one block: up to 2 blocks a single cumulative sum is as fast.
_BLOCK = 64

# On a CPU, so many weights at a time: they stay in its cache, in memory that is used again. With 16 rows of 151936 that
# is less than half the time, for much of it went into fresh pages (measured).
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Sampler:
    """`sample` at one temperature: equal samplers share the CUDA graphs that they are captured in."""

    temperature: float

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids `(n,)` and log-probabilities `(n,)` from logits `(n, V)` and uniforms `(n,)`."""
        return sample(logits, uniforms, self.temperature)


def sample(logits: Tensor, uniforms: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return token ids `(n,)` int64 and their log-probabilities `(n,)` under the distribution they were drawn from.

    logits       (n, V) of any float type; -inf is a token that cannot be drawn
    uniforms     (n,) float64 in (0, 1), see `oncurve.randomness`
    temperature  > 0, or 0 for `greedy`

    The log-probability is `log softmax(logits / temperature)[id]` in float32 at least: what
    `ops.token_logprobs(logits, ids, temperature)` gives the learner. A row with a NaN gives a NaN log-probability
    and an arbitrary valid id; the caller must check the log-probabilities before it uses the ids.
    """
    if temperature == 0:
        return greedy(logits)
    uniforms = uniforms[:, None]
    if logits.shape[1] > 2 * _BLOCK:
        ids, logprobs = _sample_blocks(logits, uniforms, temperature)
    else:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        probabilities = torch.softmax(wide if temperature == 1 else wide / temperature, dim=-1)
        cumulative = probabilities.cumsum(dim=1, dtype=torch.float64)
        ids = first_above(cumulative, uniforms * cumulative[:, -1:])[0]
        logprobs = probabilities.gather(1, ids).log_()
    return ids.squeeze(1), logprobs.squeeze(1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the likeliest ids `(n,)` of logits `(n, V)`, and their log-probabilities `(n,)` at temperature 1.

    Temperature 0 has no useful log-probability of its own (it is 0), so that of the unscaled model is recorded.
    """
    ids = logits.argmax(dim=-1, keepdim=True)
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return ids.squeeze(1), probabilities.gather(1, ids).log_().squeeze(1)


def _sample_blocks(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return `sample` in two levels, the block by its sum and then the token in it; `(n, 1)` each.

    The weights are exp((logit - highest) / temperature): each is made once for the sums and freed; those of the
    chosen block are made again.
    """
    vocabulary = logits.shape[1]
    sums, highest = (_sums_on_gpu if on_gpu(logits.device) else _sums_in_cache)(logits, temperature)
    cumulative = sums.cumsum(dim=1, dtype=torch.float64)
    total = cumulative[:, -1:]
    block, target = first_above(cumulative, uniforms * total)
    # Never negative: the sum before the first block above the target is not above it.
    target = target - cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    members = block * _BLOCK + torch.arange(_BLOCK, device=logits.device)
    inside = _scale(logits.gather(1, members.clamp(max=vocabulary - 1)) - highest, temperature)
    weights = inside.exp().masked_fill_(members >= vocabulary, 0.0)
    member = first_above(weights.cumsum(dim=1, dtype=torch.float64), target)[0]
    logprobs = inside.gather(1, member) - total.log().to(inside.dtype)
    return (block * _BLOCK + member).clamp_(max=vocabulary - 1), logprobs


def _sums_in_cache(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the blocks' sums of weights `(n, ⌈V / 64⌉)`, and the highest logits `(n, 1)`; the last block may be
    shorter. As many weights are made at a time as stay in a processor's cache.
    """
    count, vocabulary = logits.shape
    highest = logits.amax(1, keepdim=True).to(torch.promote_types(logits.dtype, torch.float32))
    blocks = -(-vocabulary // _BLOCK)
    at_once = min(count, max(1, _AT_ONCE // vocabulary))
    weights = highest.new_empty(at_once, blocks * _BLOCK)
    weights[:, vocabulary:] = 0
    sums = highest.new_empty(count, blocks)
    for start in range(0, count, at_once):
        rows = logits[start : start + at_once]
        written = weights[: len(rows), :vocabulary].copy_(rows).sub_(highest[start : start + at_once])
        _scale(written, temperature).exp_()
        torch.sum(weights[: len(rows)].view(len(rows), blocks, _BLOCK), 2, out=sums[start : start + at_once])
    return sums, highest


def _sums_on_gpu(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the same from one read of the logits, which writes no weight, where Triton is there."""
    try:
        from oncurve.rollout.triton_sums import tops_and_sums
    except ImportError:
        return _sums_in_cache(logits, temperature)
    tops, sums = tops_and_sums(logits, _BLOCK, temperature)
    highest = tops.amax(1, keepdim=True)
    return sums * ((tops - highest) / temperature).exp(), highest


def _scale(x: Tensor, temperature: float) -> Tensor:
    return x if temperature == 1 else x.div_(temperature)


def first_above(cumulative: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first `i` `(n, 1)` with `cumulative[i] > target`, and the target that was used `(n, 1)`.

    The target is held below the last sum, or rounding could push it past every token. The token found has itself
    raised the sum above a target that is at least 0 and at least the sum before it: its weight is not zero.
    """
    last = cumulative[:, -1:]
    target = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    # NaN is above every sum: clamps keep the index in the row, for the caller to find the NaN there.
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1), target
