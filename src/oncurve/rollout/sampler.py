"""One token per row from logits: inverse CDF, one uniform per row, and the token's log-probability.

The distribution is `π = softmax(logits / temperature)`, and the token for uniform `u` is the first `i` with
`Σ_{j≤i} π_j > u · Σ_j π_j`. `torch.multinomial` draws V exponentials a row from one serial generator; this sums the row
by blocks and then searches one block.

Covered: any V; tokens of probability zero are never drawn; `u` next to 0 or 1.

Truncated sampling draws a token from a part K of the vocabulary, and gives K with it.

    π = softmax(logits / τ)     top-k, then top-p, then min-p     q(a) = π(a) / Σ_{k∈K} π(k),  a ∈ K

top-k keeps the k likeliest tokens. top-p keeps the fewest of the likeliest that have at least the share p of what top-k
left. Both take the lower id where two are equally likely. min-p keeps the tokens with π(a) >= m · max π.

The policy that is trained is q, with K as it was recorded. Found again under new weights, K could lack the token that
was drawn. And π is not what sampled: where sampler and learner agree, π(a) / q(a) is π(K) and not 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.machine.compiled import on_gpu
from oncurve.rollout.sampling import Sampling

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


LARGEST = 8192
"""A larger set that has most of the vocabulary is recorded as the tokens that are not in it."""

# Sorting a large vocabulary takes longer than all else here: top-p looks at so many tokens first.
_LIKELIEST = 1024


@dataclass(frozen=True)
class TruncatedSampler:
    """A `Draw` with kept sets. `top_k` 0, `top_p` 1 and `min_p` 0 keep everything; `temperature` is above 0."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """Return ids `(n,)`, log q of them `(n,)`, and the kept sets: sizes `(n,)` and ids `(m,)` as in `Completion`.

        logits    (n, V) of any float type
        uniforms  (n,) float64 in (0, 1)

        A row with a NaN gives a NaN log-probability and an arbitrary valid id.
        """
        exact = torch.promote_types(logits.dtype, torch.float32)
        probabilities = torch.softmax(logits.to(exact) / self.temperature, -1)
        tokens, ids = self._kept(probabilities)
        sizes = tokens.bincount(minlength=len(logits))
        place = torch.arange(len(ids), device=ids.device) - (sizes.cumsum(0) - sizes)[tokens]
        members = ids.new_zeros(len(logits), max(1, int(sizes.max())))
        weights = members.double()
        members[tokens, place], weights[tokens, place] = ids, probabilities[tokens, ids].double()
        cumulative = weights.cumsum(1)
        drawn, _ = first_above(cumulative, uniforms[:, None] * cumulative[:, -1:])
        logprobs = (weights.gather(1, drawn) / cumulative[:, -1:]).log().to(exact)
        return members.gather(1, drawn)[:, 0], logprobs[:, 0], *_recorded(tokens, ids, sizes, logits.shape[1])

    def _kept(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and the id of each kept token, row after row, ids ascending."""
        least = self.min_p * probabilities.amax(1, keepdim=True)
        if not self.top_k and self.top_p == 1:
            rows, ids = torch.where(probabilities >= least)
            return rows, ids
        values, count = self._likeliest(probabilities)
        last = values.gather(1, count - 1)
        rows, ids = torch.where(probabilities >= torch.maximum(last, least))
        # Of those as likely as the last one the first ids are kept, as many as there is room for.
        tied = probabilities[rows, ids] == last[rows, 0]
        room = count[:, 0] - (values > last).sum(1)
        ties = rows[tied].bincount(minlength=len(values))
        rank = tied.cumsum(0) - (ties.cumsum(0) - ties)[rows]
        kept = ~tied | (rank <= room[rows])
        return rows[kept], ids[kept]

    def _likeliest(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the highest probabilities `(n, m)` of each row, descending, and how many of them are kept `(n, 1)`."""
        vocabulary = probabilities.shape[1]
        most = min(self.top_k or vocabulary, vocabulary)
        values = probabilities.topk(most if self.top_k else min(most, _LIKELIEST)).values
        if self.top_p == 1:
            return values, torch.full_like(values[:, :1], most, dtype=torch.int64)
        of = values if self.top_k else probabilities
        wanted = self.top_p * of.sum(1, keepdim=True, dtype=torch.float64)
        cumulative = values.double().cumsum(1)
        if values.shape[1] < most and bool((cumulative[:, -1:] < wanted).any()):
            values = probabilities.topk(most).values
            cumulative = values.double().cumsum(1)
        return values, ((cumulative < wanted).sum(1, keepdim=True) + 1).clamp(max=most)


def sampler_of(sampling: Sampling) -> Sampler | TruncatedSampler:
    """Return the sampler by these settings."""
    if not sampling.truncation:
        return Sampler(sampling.temperature)
    return TruncatedSampler(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def _recorded(rows: Tensor, ids: Tensor, sizes: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the sets of n rows as sizes `(n,)` and ids `(m,)`, int32, large ones by what they lack."""
    lacking = (sizes > LARGEST) & (2 * sizes > vocabulary)
    if bool(lacking.any()):
        listed = torch.zeros(len(sizes), vocabulary, dtype=torch.bool, device=ids.device)
        listed[rows, ids] = True
        ids = torch.where(listed ^ lacking[:, None])[1]
        sizes = torch.where(lacking, sizes - vocabulary - 1, sizes)
    return sizes.int(), ids.int()
