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
