"""Rollout one token at a time in plain Python: of a bigram model, and of any network."""

from collections.abc import Sequence
from typing import Any

import torch

from oracles import plain_random, plain_sampler
from oracles.plain_forward import next_logits


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


def complete_whole(
    module: Any,
    prompt: Sequence[int],
    key: tuple[int, int, int, int],
    eos_ids: set[int],
    max_new_tokens: int,
    temperature: float,
) -> tuple[list[int], list[float], str]:
    """The same for any network, which reads the prompt and all that is written again for every token."""
    ids: list[int] = []
    logprobs: list[float] = []
    for position in range(max_new_tokens):
        logits = next_logits(module, torch.tensor(list(prompt)), ids).tolist()
        token, logprob = plain_sampler.sample(logits, plain_random.uniform(*key, position), temperature)
        ids.append(token)
        logprobs.append(logprob)
        if token in eos_ids:
            return ids, logprobs, "eos"
    return ids, logprobs, "length"
