"""Rewards to advantages, relative to their group."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_and_std(values: Sequence[float], ddof: int) -> tuple[float, float]:
    """Two passes in float64; exactly 0 deviation when all values are the same."""
    mean = math.fsum(values) / len(values)
    if max(values) == min(values):
        return values[0], 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def advantages(rewards: list[list[float | None]], scale: str, ddof: int, eps: float) -> list[list[float | None]]:
    """A_i = (r_i - mean r) / (std + eps) over the valid rewards of the group; None where not valid.

    A group with fewer than two valid rewards teaches nothing: all of it is None. A constant group is exactly 0.
    """
    groups = [[r for r in group if r is not None] for group in rewards]
    usable = [r for group in groups if len(group) >= 2 for r in group]
    answer: list[list[float | None]] = []
    for group, valid in zip(rewards, groups, strict=True):
        if len(valid) < 2:
            answer.append([None] * len(group))
            continue
        mean, std = mean_and_std(valid, ddof)
        if max(valid) == min(valid):
            answer.append([None if r is None else 0.0 for r in group])
            continue
        divisor = {"group": std + eps, "batch": mean_and_std(usable, ddof)[1] + eps, "none": 1.0}[scale]
        answer.append([None if r is None else (r - mean) / divisor for r in group])
    return answer
