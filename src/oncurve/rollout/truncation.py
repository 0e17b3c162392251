"""Truncated sampling: a token from a part K of the vocabulary, and K with it.

    π = softmax(logits / τ)     top-k, then top-p, then min-p     q(a) = π(a) / Σ_{k∈K} π(k),  a ∈ K

top-k keeps the k likeliest tokens. top-p keeps the fewest of the likeliest that have at least the share p of what top-k
left. Both take the lower id where two are equally likely. min-p keeps the tokens with π(a) >= m · max π.

The policy that is trained is q, with K as it was recorded. Found again under new weights, K could lack the token that
was drawn. And π is not what sampled: where sampler and learner agree, π(a) / q(a) is π(K) and not 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.rollout.sampler import Sampler, first_above
from oncurve.rollout.sampling import Sampling

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
