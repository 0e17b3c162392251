"""The advantages of the GRPO family, per completion or per token; None is a reward that is not valid."""

from __future__ import annotations

import math

from oracles.plain_grpo.advantages import mean_and_std

Group = list[float | None]


def spread(valid: list[float]) -> bool:
    """Whether the valid rewards of a group teach anything: two of them at least, and not all the same."""
    return len(valid) >= 2 and max(valid) > min(valid)


def rloo(rewards: list[Group]) -> list[list[float]]:
    """Each reward minus the mean of the others."""
    answer = []
    for group in rewards:
        row = []
        for i, r in enumerate(group):
            others = [x for j, x in enumerate(group) if x is not None and j != i]
            teaches = r is not None and spread([*others, r])
            row.append(r - math.fsum(others) / len(others) if teaches else 0.0)
        answer.append(row)
    return answer


def maxrl(rewards: list[Group], eps: float) -> list[list[float]]:
    """Rewards relative to the mean, over the mean."""
    answer = []
    for group in rewards:
        valid = [r for r in group if r is not None]
        mean = math.fsum(valid) / len(valid) if valid else 0.0
        answer.append([0.0 if r is None or not spread(valid) else (r - mean) / (mean + eps) for r in group])
    return answer


def opo(rewards: list[Group], lengths: list[list[int]]) -> list[list[float]]:
    """Each reward minus the mean weighted by length; by nothing where no completion has a trained token."""
    answer = []
    for group, sizes in zip(rewards, lengths, strict=True):
        pairs = [(r, n) for r, n in zip(group, sizes, strict=True) if r is not None]
        valid = [r for r, _ in pairs]
        total = sum(n for _, n in pairs)
        baseline = math.fsum(r * n for r, n in pairs) / total if total else math.fsum(valid) / max(1, len(valid))
        answer.append([0.0 if r is None or not spread(valid) else r - baseline for r in group])
    return answer


def passk(rewards: list[Group], ddof: int, eps: float | None) -> list[list[float]]:
    """The best minus the second best, over std + eps (None: over 1), for the best alone."""
    answer = []
    for group in rewards:
        valid = sorted((r for r in group if r is not None), reverse=True)
        if not spread(valid) or valid[0] == valid[1]:
            answer.append([0.0] * len(group))
            continue
        gain = (valid[0] - valid[1]) / (1.0 if eps is None else mean_and_std(valid, ddof)[1] + eps)
        answer.append([gain if r == valid[0] else 0.0 for r in group])
    return answer


def gdpo(values: list[list[list[float] | None]], weights: list[float], ddof: int, eps: float) -> list[list[float]]:
    """Each reward normalised in its group, the weighted sum of that, divided by its own deviation over the batch.

    `values[g][i]` has a value per reward, NaN where one does not apply; None: the completion is not valid.
    """
    sums: list[list[float]] = []
    used: list[float] = []
    for group in values:
        row = [0.0] * len(group)
        for k, weight in enumerate(weights):
            applies = [i for i, one in enumerate(group) if one is not None and not math.isnan(one[k])]
            found = [group[i][k] for i in applies]  # type: ignore[index]
            if spread(found):
                mean, std = mean_and_std(found, ddof)
                for i, value in zip(applies, found, strict=True):
                    row[i] += weight * (value - mean) / (std + eps)
        sums.append(row)
        valid = [s for s, one in zip(row, group, strict=True) if one is not None]
        used += valid if len(valid) >= 2 else []
    mean = math.fsum(used) / max(1, len(used))
    std = math.sqrt(math.fsum((s - mean) ** 2 for s in used) / max(1, len(used) - ddof))
    return [[(s - mean) / (std + eps) if s else 0.0 for s in row] for row in sums]


def whitened(values: list[list[float]], trained: list[list[bool]]) -> list[list[float]]:
    """Minus the mean, over the root of variance + 1e-8, of the trained tokens of all rows; 0 elsewhere."""
    chosen = [x for row, mask in zip(values, trained, strict=True) for x, on in zip(row, mask, strict=True) if on]
    if len(chosen) < 2 or max(chosen) == min(chosen):
        return [[0.0] * len(row) for row in values]
    mean, std = mean_and_std(chosen, 1)
    return [
        [(x - mean) / math.sqrt(std**2 + 1e-8) if on else 0.0 for x, on in zip(row, mask, strict=True)]
        for row, mask in zip(values, trained, strict=True)
    ]


def rewards_to_go(rewards: list[list[float]], trained: list[list[bool]], gamma: float) -> list[list[float]]:
    """Σ γ^n r over the trained tokens from each one on, n of them away; a reward between two is the earlier one's."""
    answer = []
    for row, mask in zip(rewards, trained, strict=True):
        places = [t for t, on in enumerate(mask) if on]
        own = [math.fsum(row[t : (places[n + 1 :] or [len(row)])[0]]) for n, t in enumerate(places)]
        to_go = {t: math.fsum(gamma**n * r for n, r in enumerate(own[k:])) for k, t in enumerate(places)}
        answer.append([to_go.get(t, 0.0) for t in range(len(row))])
    return answer
