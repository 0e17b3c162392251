"""Rollout of a bigram model, one token at a time in plain Python."""

from oracles import plain_random, plain_sampler


def complete(
    table: list[list[float]],
    last: int,
    key: tuple[int, int, int, int],
    eos_ids: set[int],
    max_new_tokens: int,
    temperature: float,
) -> tuple[list[int], list[float], str]:
    """Token ids, log-probabilities and ending of one completion; `key` is (seed, draw, prompt id, sample index)."""
    ids: list[int] = []
    logprobs: list[float] = []
    for position in range(max_new_tokens):
        token, logprob = plain_sampler.sample(table[last], plain_random.uniform(*key, position), temperature)
        ids.append(token)
        logprobs.append(logprob)
        if token in eos_ids:
            return ids, logprobs, "eos"
        last = token
    return ids, logprobs, "length"
