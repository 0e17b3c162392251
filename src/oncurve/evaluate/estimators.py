"""pass@k and maj@k, exactly: expectations over the subsets of k of n completions, without enumerating one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence


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
