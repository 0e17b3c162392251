"""Generalised advantages as a double sum over the tokens that count, with nothing clever. No imports from oncurve."""

from collections.abc import Sequence


def plain_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    mask: Sequence[bool],
    gamma: float,
    lam: float,
    beyond: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one completion, 0 at tokens that are skipped.

    Skipped tokens are taken out first: their rewards go to the trained token before them.
    """
    kept: list[int] = []
    reward_of: dict[int, float] = {}
    for token, (reward, trained) in enumerate(zip(rewards, mask, strict=True)):
        if trained:
            kept.append(token)
            reward_of[token] = reward
        elif kept:
            reward_of[kept[-1]] += reward
    following = [*[values[token] for token in kept][1:], beyond]
    deltas = [reward_of[token] + gamma * after - values[token] for token, after in zip(kept, following, strict=False)]
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    for place, token in enumerate(kept):
        advantages[token] = sum((gamma * lam) ** (k - place) * deltas[k] for k in range(place, len(kept)))
        returns[token] = advantages[token] + values[token]
    return advantages, returns


def plain_whitened(rows: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]]) -> list[list[float]]:
    """`(x - mean) / sqrt(variance + 1e-8)` over the tokens that count, 0 at the others; variance with n - 1."""
    kept = [x for row, mask in zip(rows, masks, strict=True) for x, on in zip(row, mask, strict=True) if on]
    if len(kept) < 2 or max(kept) == min(kept):
        return [[0.0] * len(row) for row in rows]
    mean = sum(kept) / len(kept)
    scale = (sum((x - mean) ** 2 for x in kept) / (len(kept) - 1) + 1e-8) ** 0.5
    return [
        [(x - mean) / scale if on else 0.0 for x, on in zip(row, mask, strict=True)]
        for row, mask in zip(rows, masks, strict=True)
    ]
