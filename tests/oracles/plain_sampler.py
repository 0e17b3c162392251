"""Inverse-CDF sampling, one token at a time in plain Python floats."""

import math


def distribution(logits: list[float], temperature: float) -> list[float]:
    scaled = [value / temperature for value in logits]
    highest = max(scaled)
    weights = [math.exp(value - highest) for value in scaled]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def sample(logits: list[float], u: float, temperature: float) -> tuple[int, float]:
    if temperature == 0:
        return logits.index(max(logits)), math.log(max(distribution(logits, 1.0)))
    probabilities = distribution(logits, temperature)
    for token in range(len(logits)):
        if math.fsum(probabilities[: token + 1]) > u:
            return token, math.log(probabilities[token])
    last = max(token for token, probability in enumerate(probabilities) if probability > 0)
    return last, math.log(probabilities[last])
