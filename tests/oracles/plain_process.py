"""Process supervision by loops, as the paper writes it: pool, normalise, sum from the end. No imports from oncurve."""

from collections.abc import Sequence
from math import sqrt


def plain_process_advantages(
    groups: Sequence[Sequence[tuple[int, Sequence[tuple[int, float]]]]], ddof: int = 1, eps: float = 1e-6
) -> list[list[list[float]]]:
    """groups -> completions `(length, [(end, reward), ...])`; the advantage of each token of each completion."""
    result = []
    for group in groups:
        pool = [reward for _, steps in group for _, reward in steps]
        mean = sum(pool) / len(pool) if pool else 0.0
        flat = len(pool) < 2 or max(pool) == min(pool)
        std = 0.0 if flat else sqrt(sum((reward - mean) ** 2 for reward in pool) / (len(pool) - ddof))
        result.append(
            [
                [
                    0.0 if flat else sum((reward - mean) / (std + eps) for end, reward in steps if end >= token)
                    for token in range(length)
                ]
                for length, steps in group
            ]
        )
    return result
