"""Weights of the policy term, token by token: importance weights, the filter by entropy, the filter of off-policy."""

from __future__ import annotations

import math


def importance_weights(
    old: list[float],
    sampler: list[float],
    trained: list[bool],
    kind: str,  # truncated | masked
    level: str = "token",  # token | sequence | geometric
    upper: float = 2.0,
    lower: float = 0.5,
) -> list[float]:
    """π_old/μ of each token of one completion after its bound; 1 where a token is not trained."""
    at = [t for t in range(len(old)) if trained[t]]
    ratio = {t: math.exp(old[t]) / math.exp(sampler[t]) for t in at}
    if level != "token" and at:
        whole = math.prod(ratio.values())
        ratio = {t: whole if level == "sequence" else whole ** (1 / len(at)) for t in at}
    weights = [1.0] * len(old)
    for t in at:
        if kind == "truncated":
            weights[t] = min(ratio[t], upper)
        else:
            weights[t] = ratio[t] if lower <= ratio[t] <= upper else 0.0
    return weights


def of_high_entropy(entropies: list[list[float]], trained: list[list[bool]], share: float) -> list[list[float]]:
    """1 for the `share` of all trained tokens whose entropy is highest, and for those equal to the last, else 0."""
    known = [h for row, on in zip(entropies, trained, strict=True) for h, yes in zip(row, on, strict=True) if yes]
    last = sorted(known, reverse=True)[max(1, round(share * len(known))) - 1]
    return [
        [float(yes and h > last - 1e-4) for h, yes in zip(row, on, strict=True)]
        for row, on in zip(entropies, trained, strict=True)
    ]


def not_off_policy(
    now: list[float], sampler: list[float], trained: list[bool], advantage: float, threshold: float
) -> list[float]:
    """0 for every token of a completion with a negative advantage that the policy would hardly write by now, else 1."""
    gaps = [sampler[t] - now[t] for t in range(len(now)) if trained[t]]
    far = bool(gaps) and sum(gaps) / len(gaps) > threshold
    return [0.0 if far and advantage < 0 else 1.0] * len(now)
