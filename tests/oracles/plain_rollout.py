"""Rollout one token at a time in plain Python: of a bigram model, and of any network."""

from collections.abc import Callable, Sequence
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
    return _written(lambda ids: table[[last, *ids][-1]], key, eos_ids, max_new_tokens, temperature)


def complete_whole(
    module: Any,
    prompt: Sequence[int],
    key: tuple[int, int, int, int],
    eos_ids: set[int],
    max_new_tokens: int,
    temperature: float,
) -> tuple[list[int], list[float], str]:
    """The same for any network, which reads the prompt and all that is written again for every token."""

    def logits_after(ids: list[int]) -> list[float]:
        return next_logits(module, torch.tensor(list(prompt)), ids).tolist()

    return _written(logits_after, key, eos_ids, max_new_tokens, temperature)


def _written(
    logits_after: Callable[[list[int]], list[float]],
    key: tuple[int, int, int, int],
    eos_ids: set[int],
    max_new_tokens: int,
    temperature: float,
) -> tuple[list[int], list[float], str]:
    ids: list[int] = []
    logprobs: list[float] = []
    for position in range(max_new_tokens):
        uniform = plain_random.uniform(*key, position)
        token, logprob = plain_sampler.sample(logits_after(ids), uniform, temperature)
        ids.append(token)
        logprobs.append(logprob)
        if token in eos_ids:
            return ids, logprobs, "eos"
    return ids, logprobs, "length"
