"""Estimates with 95 % intervals: shares, means over prompts, paired differences. The same data give the same digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oncurve.randomness import row_keys, uniform_at

_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_DRAW = -1  # training draws count up from 0: no interval shares its random numbers with a step
_RESAMPLES = 2000
_RESAMPLES_AT_ONCE = 200  # (200, n) float64: 2 MB for a thousand prompts


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval, `low <= value <= high`."""

    value: float
    low: float
    high: float

    def to_list(self) -> list[float]:
        """Return `[value, low, high]`, as it is written to JSON."""
        return [self.value, self.low, self.high]


def wilson(successes: int, total: int) -> Interval:
    """Return a share and its 95 % Wilson score interval (Wilson 1927), which never leaves [0, 1] nor collapses at its
    ends.

        centre = (p + z²/2n) / (1 + z²/n),   half = z √(p(1-p)/n + z²/4n²) / (1 + z²/n),   z = 1.96

    Raises ValueError where `total` is 0 or `successes` is not in 0..total.
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"a share needs 0 <= successes <= total and total >= 1, got {successes} of {total}")
    share, square = successes / total, _Z * _Z / total
    centre = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total)) / (1 + square)
    return Interval(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Return the mean of one value a prompt, and its 95 % percentile bootstrap interval (Efron 1979) over prompts.

    2,000 resamples whose indices are a function of (seed, resample, index): the same values give the same interval.
    Where all values agree there is no spread to resample and the interval is the value. Raises ValueError: no values.
    """
    if not values:
        raise ValueError("no values to average")
    data = torch.tensor(list(values), dtype=torch.float64)
    mean = math.fsum(values) / len(values)
    if max(values) == min(values):
        return Interval(values[0], values[0], values[0])
    places = torch.arange(len(values))
    means = []
    for start in range(0, _RESAMPLES, _RESAMPLES_AT_ONCE):
        resamples = torch.arange(start, start + _RESAMPLES_AT_ONCE)
        keys = row_keys(seed, _DRAW, resamples, torch.zeros_like(resamples))
        means.append(data[(uniform_at(keys[:, None], places[None, :]) * len(values)).long()].mean(dim=1))
    low, high = torch.quantile(torch.cat(means), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(mean, min(low, mean), max(high, mean))


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> Interval:
    """Return how much larger the share of True is after than before, on the same prompts, with a 95 % interval.

        (c - b) / n;   interval: the same of (c + ½, b + ½, n + 2), ± z √((b + c) - (c - b)²/n) / n

    b prompts were lost, c won. The half counts are Agresti and Min's (2005), which keep the interval honest where few
    prompts changed. Raises ValueError: lengths that differ, or 0.
    """
    if len(before) != len(after) or not before:
        raise ValueError(f"a paired comparison needs the same prompts, got {len(before)} and {len(after)}")
    won = sum(b < a for b, a in zip(before, after, strict=True))
    lost = sum(b > a for b, a in zip(before, after, strict=True))
    total, gain, changed = len(before) + 2, won - lost, won + lost + 1
    half = _Z * math.sqrt(changed - gain * gain / total) / total
    value = gain / len(before)
    return Interval(value, max(-1.0, min(value, gain / total - half)), min(1.0, max(value, gain / total + half)))


def share(values: Sequence[float], seed: int = 0) -> Interval:
    """Return the mean of values in [0, 1]: by bootstrap, or with Wilson's interval where each of them is 0 or 1."""
    if all(value in (0.0, 1.0) for value in values):
        return wilson(round(sum(values)), len(values))
    return bootstrap(values, seed)
