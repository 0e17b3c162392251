"""Estimates: pass@k and maj@k exactly, and 95 % intervals of shares, means over prompts and paired differences.

The same data give the same digits. pass@k and maj@k are expectations over the subsets of k of n completions, without
enumerating one.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from oncurve.randomness import row_keys, uniform_at


def pass_at_k(completions: int, correct: int, k: int) -> float:
    """Return the probability that k of n completions, drawn without replacement, hold a correct one; unbiased.

        pass@k = 1 - C(n-c, k) / C(n, k)          Chen et al., arXiv:2107.03374, eq. 1

    `completions` n >= k >= 1, `correct` 0 <= c <= n. Exact: integers until the last division. Raises ValueError.
    """
    if not 1 <= k <= completions or not 0 <= correct <= completions:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n={completions}, c={correct}, k={k}")
    draws = math.comb(completions, k)
    return (draws - math.comb(completions - correct, k)) / draws


def maj_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Return the probability that the majority of k of the n completions, drawn without replacement, is right; ties
    uniform.

    `answers[i]` is what completion i votes for, None for no vote (no answer in it); without any vote the majority is
    wrong. An answer is as right as the share of its completions that are correct. Example: A A B B C with A right,
    k = 3, gives 0.4333...

    Exact: for each number of votes M that can win, a polynomial over (draws used, answers with exactly M votes) counts
    the subsets in integers, so no subset is enumerated; n = 64 takes well under a second.
    Raises ValueError: k outside 1..n, lengths that differ.
    """
    n = len(answers)
    if len(correct) != n or not 1 <= k <= n:
        raise ValueError(f"maj@k needs 1 <= k <= n and a verdict an answer, got n={n}, {len(correct)} verdicts, k={k}")
    votes: dict[Hashable, list[bool]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(right)
    classes = [(len(verdicts), sum(verdicts) / len(verdicts)) for verdicts in votes.values()]
    silent = sum(answer is None for answer in answers)
    largest = max((size for size, _ in classes), default=0)
    won = math.fsum(_won_with(classes, silent, k, most) for most in range(1, min(k, largest) + 1))
    return won / math.comb(n, k)


def _won_with(classes: Sequence[tuple[int, float]], silent: int, k: int, most: int) -> float:
    """Return subsets of k in which the winners have exactly `most` votes, each counted as right as its winners on
    average.

    `ways[used][tied]` counts the choices so far; `right[used][tied]` the same, weighted by Σ rightness of the tied.
    """
    ways = {(used, 0): math.comb(silent, used) for used in range(min(silent, k) + 1)}
    right: dict[tuple[int, int], float] = {}
    for size, rightness in classes:
        new_ways: dict[tuple[int, int], int] = {}
        new_right: dict[tuple[int, int], float] = {}
        for (used, tied), count in ways.items():
            weighted = right.get((used, tied), 0.0)
            for taken in range(min(size, most, k - used) + 1):
                wins = taken == most
                state = (used + taken, tied + wins)
                choices = math.comb(size, taken)
                new_ways[state] = new_ways.get(state, 0) + count * choices
                new_right[state] = new_right.get(state, 0.0) + (weighted + wins * rightness * count) * choices
        ways, right = new_ways, new_right
    return math.fsum(value / tied for (used, tied), value in right.items() if used == k and tied)


def powers_of_two(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to n: the k that are looked at."""
    return tuple(1 << power for power in range(n.bit_length()))


_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_DRAW = -1  # training draws count up from 0: no interval shares its random numbers with a step
_RESAMPLES = 2000
_RESAMPLES_AT_ONCE = 200  # (200, n) float64: 2 MB for a thousand prompts


class Interval(NamedTuple):
    """An estimate and its 95 % interval, `low <= value <= high`."""

    value: float
    low: float
    high: float


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
