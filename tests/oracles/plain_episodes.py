"""An episode on its own, in plain Python: a bigram model writes a turn, the environment replies, and so on."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from oncurve.environments import Episode
from oncurve.randomness import episode_seed
from oracles import plain_rollout

TURN = 2**40


class Played(NamedTuple):
    ids: list[int]
    logprobs: list[float]
    trained: list[bool]
    rewards: list[float | None]
    ended: str
    outcome: float | None


def play(
    episode: Episode,
    table: list[list[float]],
    tokenizer: Any,
    ids: Sequence[int],
    key: tuple[int, int, int, int],
    row: Mapping[str, Any],
    most: int,
    max_turns: int,
) -> Played:
    """`key` is (seed, draw, prompt id, sample index); an end token ends each turn."""
    seed, draw, prompt, sample = key
    random.seed(episode_seed(seed, draw, prompt, 0, 0))
    said = episode.start(row, "")
    start = [*ids, *encoded(tokenizer, said or "")]
    own, logprobs, trained, rewards = [], [], [], []
    for turn in range(max_turns):
        last = (start + own)[-1]
        place = (seed, draw, prompt, sample + turn * TURN)
        new, values, ended = plain_rollout.complete(table, last, place, {tokenizer.eos_token_id}, most - len(own), 1.0)
        own, logprobs, trained = own + new, logprobs + values, trained + [True] * len(new)
        if ended == "length":
            rewards.append(None)
            break
        random.seed(episode_seed(seed, draw, prompt, sample, turn + 1))
        reply = episode.reply(tokenizer.decode(new, skip_special_tokens=True), [])
        rewards.append(reply.reward)
        if reply.done:
            ended = "environment"
            break
        if turn == max_turns - 1:
            ended = "turns"
            break
        context = encoded(tokenizer, "".join(message["content"] for message in reply.messages))
        if len(own) + len(context) >= most:
            ended = "budget"
            break
        own, logprobs = own + context, logprobs + [0.0] * len(context)
        trained += [False] * len(context)
    return Played(own, logprobs, trained, rewards, ended, episode.score())


def encoded(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text in which the names of special tokens are cut after their first character."""
    for name in tokenizer.all_special_tokens:
        text = text.replace(name, name[0] + "\0" + name[1:])
    pieces = [tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in text.split("\0") if piece]
    return [token for piece in pieces for token in piece]
