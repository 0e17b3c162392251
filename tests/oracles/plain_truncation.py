"""Truncated sampling in plain Python: the kept set of one token, and logits that leave all others out.

Imports nothing from oncurve.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oracles.plain_sampler import distribution

OUTSIDE = -1e30


def kept_set(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """Ids, ascending, by the definition: temperature, top-k, top-p, min-p; of equals the lower id goes first."""
    probabilities = distribution(logits, temperature)
    kept = sorted(range(len(logits)), key=lambda token: (-probabilities[token], token))[: top_k or None]
    if top_p < 1:
        target, so_far = top_p * math.fsum(probabilities[token] for token in kept), 0.0
        for count, token in enumerate(kept, start=1):
            so_far += probabilities[token]
            if so_far >= target:
                kept = kept[:count]
                break
    return sorted(token for token in kept if probabilities[token] >= min_p * max(probabilities))


def recorded(sets: Sequence[Sequence[int]], inverted: Sequence[bool], vocabulary: int) -> tuple[tuple[int, ...], bytes]:
    """The sets of a completion's tokens as it stores them; where `inverted`, by the tokens that are not in them."""
    sizes, ids = [], list[int]()
    for kept, other in zip(sets, inverted, strict=True):
        listed = sorted(set(range(vocabulary)) - set(kept)) if other else sorted(kept)
        sizes.append(-1 - len(listed) if other else len(listed))
        ids += listed
    return tuple(sizes), torch.tensor(ids, dtype=torch.int32).numpy().tobytes()


def sets_of(sizes: Sequence[int], ids: bytes, vocabulary: int) -> list[list[int]]:
    """The inverse of `recorded`."""
    left, found = list(memoryview(ids).cast("i")), []
    for size in sizes:
        count = size if size >= 0 else -1 - size
        listed, left = left[:count], left[count:]
        found.append(listed if size >= 0 else sorted(set(range(vocabulary)) - set(listed)))
    assert not left
    return found


def masked(logits: Tensor, sets: Sequence[Sequence[int]]) -> Tensor:
    """Logits `(n, V)` with `OUTSIDE` where a token is not in its row's set."""
    outside = torch.ones(logits.shape, dtype=torch.bool, device=logits.device)
    for row, kept in enumerate(sets):
        outside[row, list(kept)] = False
    return torch.where(outside, OUTSIDE, logits)


def renormalised(
    logits_fn: Callable[[Tensor], Tensor], sets: dict[tuple[int, ...], list[list[int]]]
) -> Callable[[Tensor], Tensor]:
    """`logits_fn` with the sets of each row, by its ids: those of the positions that predict its last tokens."""

    def logits(ids: Tensor) -> Tensor:
        found, kept = logits_fn(ids), sets[tuple(ids[0].tolist())]
        first = len(found) - 1 - len(kept)
        return torch.cat([found[:first], masked(found[first:-1], kept), found[-1:]])

    return logits
