"""What torch's flash kernels compute over ragged sequences, with all scores written out. No oncurve here."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def plain_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, ...]:
    """Return outputs `(N, h, d)`, log-sum-exps `(h, N)`, two states of a generator and nothing: as the kernel does."""
    out, log_sums = torch.empty_like(query), query.new_empty(query.shape[1], len(query))
    for asked, answering, hidden in sequences(query_ends, key_ends, window_size_left):
        assert asked.stop - asked.start <= most_queries
        assert answering.stop - answering.start <= most_keys
        scores = scores_of(query[asked], key[answering], scale).masked_fill(hidden, -torch.inf)
        log_sums[:, asked] = scores.logsumexp(-1)
        out[asked] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), repeated(value[answering], query))
    return out, log_sums, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def plain_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sums: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    dropout: float,
    causal: bool,
    *states: Any,
    scale: float,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by query, key and value; keys of no sequence get what was there, NaN."""
    assert len(states) == 2
    by_query, by_key, by_value = (torch.full_like(x, torch.nan) for x in (query, key, value))
    for asked, answering, hidden in sequences(query_ends, key_ends, window_size_left):
        keys, values = repeated(key[answering], query), repeated(value[answering], query)
        scores = torch.einsum("qhd,khd->hqk", query[asked], keys) * scale
        weights = (scores - log_sums[:, asked, None]).exp().masked_fill(hidden, 0.0)
        arrived = torch.einsum("qhd,khd->hqk", grad[asked], values)
        by_score = weights * (arrived - (grad[asked] * out[asked]).sum(-1).T[..., None]) * scale
        by_query[asked] = torch.einsum("hqk,khd->qhd", by_score, keys)
        by_key[answering] = grouped(torch.einsum("hqk,qhd->khd", by_score, query[asked]), key)
        by_value[answering] = grouped(torch.einsum("hqk,qhd->khd", weights, grad[asked]), key)
    return by_query, by_key, by_value


def sequences(query_ends: Tensor, key_ends: Tensor, left: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield each sequence's queries, keys, and which of them do not see each other: the last see each other."""
    bounds = [[slice(*pair) for pair in pairwise(ends.tolist())] for ends in (query_ends, key_ends)]
    for asked, answering in zip(*bounds, strict=True):
        queries, keys = asked.stop - asked.start, answering.stop - answering.start
        distance = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)[None, :]
        yield asked, answering, (distance < 0) | ((distance > left) if left >= 0 else distance < 0)


def scores_of(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return torch.einsum("qhd,khd->hqk", query, repeated(key, query)) * scale


def repeated(x: Tensor, query: Tensor) -> Tensor:
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def grouped(gradient: Tensor, key: Tensor) -> Tensor:
    return gradient.unflatten(1, (key.shape[1], -1)).sum(2)
