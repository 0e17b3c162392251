"""A language model of a few hundred parameters and random groups for it: enough to tell one gradient from another."""

import random
from dataclasses import replace

import torch
from torch import Tensor, nn

from oncurve.models.generic import GenericModel
from oncurve.types import Completion, Group, Prompt, Score

VOCABULARY = 11
REWARDS: list[list[float | None]] = [[1.0, 0.0, 0.3, 1.0], [0.5, None, 0.0, 0.2], [0.7, 0.7, 0.7, 0.7]]
"""Of three groups of four completions: one of them has a fault, one group is constant."""


class TinyLM(nn.Module):
    """Logits that depend on the whole past: embedding, its mean so far, tanh, output (tied to the embedding or not)."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 6, seed: int = 0, tied: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            parameter.data.normal_(0.0, 0.7, generator=generator)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        lengths = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.out(torch.tanh(x + self.mix(x.cumsum(1) / lengths)))


def tiny_model(dtype: torch.dtype = torch.float64, seed: int = 0, tied: bool = False) -> GenericModel:
    return GenericModel(TinyLM(seed=seed, tied=tied).to(dtype))


def random_groups(
    count: int = 3,
    size: int = 4,
    seed: int = 0,
    rewards: list[list[float | None]] | None = None,
) -> list[Group]:
    """Groups of ragged completions with made-up sampler log-probs; a reward of None is a completion that faulted."""
    chance = random.Random(seed)
    groups = []
    for number in range(count):
        prompt = tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 4)))
        completions, scores = [], []
        for index in range(size):
            ids = tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 6)))
            logprobs = tuple(-3.5 * chance.random() for _ in ids)
            completions.append(Completion(ids, "", logprobs, "length", index, 0))
            reward = rewards[number][index] if rewards is not None else round(chance.random(), 3)
            scores.append(Score(reward) if reward is not None else Score(0.0, valid=False, fault="fault"))
        groups.append(Group(Prompt(number, "", prompt), tuple(completions), tuple(scores)))
    return groups


def groups_with_gaps(seed: int) -> list[Group]:
    """The groups of `REWARDS`, in whose completions any tokens are not trained."""
    rng = random.Random(seed)
    return [
        replace(group, completions=tuple(replace(c, trained=mask_of(rng, len(c.ids))) for c in group.completions))
        for group in random_groups(seed=seed, rewards=REWARDS)
    ]


def mask_of(rng: random.Random, length: int) -> tuple[bool, ...] | None:
    """All trained (said and unsaid), nothing, without the first or the last token, or any."""
    some = [rng.random() < 0.6 for _ in range(length)]
    shapes = [None, [True] * length, [False] * length, [False, *some[1:]], [*some[:-1], False], some]
    chosen = rng.choice(shapes)
    return None if chosen is None else tuple(chosen)
