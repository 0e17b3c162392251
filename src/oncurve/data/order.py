"""The order of prompts: a pure function of seed and cursor, so a resumed run continues where it stopped.

A curriculum draws prompts that the policy gets right now and then more often than the others:

    p̂ = (right + 1) / (seen + 2)        w = p̂ (1 - p̂) + floor        a prompt without counts: w = 1/4 + floor

Each batch is drawn without repetition, a prompt first with a probability in proportion to w (an exponential race:
Efraimidis and Spirakis, Inf. Process. Lett. 2006). A group whose completions are all right or all wrong has advantages
of 0; the floor brings its prompt back now and then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import torch

from oncurve.base.errors import DataError
from oncurve.randomness import permutation, weighted_order
from oncurve.types import Group, Prompt, Score


class PromptSequence(Protocol):
    """Prompts by their index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...


class PromptOrder:
    """Endless epochs over `prompts`. Cursor c is position `c mod n` of epoch `c div n`, n the number of prompts.

    Epoch e has the order `permutation(seed, e, n)`, or that of `prompts` without `shuffle`. A batch may span epochs (no
    remainder is dropped), so a prompt occurs twice in a batch only across such a boundary, or where the batch is larger
    than the data.

    With a `mixture`, `(indices of prompts, weight)` of each source, an epoch has n prompts too, of which each source
    gives its share, rounded to whole prompts. A source goes through its own prompts in epochs of its own.
    """

    def __init__(
        self,
        prompts: PromptSequence,
        seed: int,
        shuffle: bool = True,
        mixture: Sequence[tuple[Sequence[int], float]] = (),
    ) -> None:
        if not len(prompts):
            raise DataError("data: there are no prompts, so there is nothing to train on")
        self.prompts, self.seed, self.shuffle = prompts, seed, shuffle
        counts = _shares(len(prompts), [weight for _, weight in mixture])
        self._sources = [(indices, count) for (indices, _), count in zip(mixture, counts, strict=True)]
        for number, (indices, count) in enumerate(self._sources, start=1):
            if not indices or not count:
                why = "gives less than one prompt an epoch: raise its weight" if indices else "has no prompt left"
                raise DataError(f"data.weights: source {number} of data.path {why}, or take it out")
        self._order = lru_cache(maxsize=2)(self._order_of)  # a batch rarely spans more than two epochs
        self._own_order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return len(self.prompts)

    def take(
        self, cursor: int, count: int, counts: Mapping[int, tuple[int, int]] | None = None
    ) -> tuple[list[Prompt], int]:
        """Return the `count` prompts from `cursor` on, and the cursor after them; `counts` are for a curriculum.

        Raises ValueError: count < 1, cursor < 0.
        """
        if count < 1 or cursor < 0:
            raise ValueError(f"take(cursor={cursor}, count={count}): needs a cursor >= 0 and a count >= 1")
        places = (divmod(cursor + ahead, len(self.prompts)) for ahead in range(count))
        return [self.prompts[self._order(epoch)[place]] for epoch, place in places], cursor + count

    def epoch(self, cursor: int) -> float:
        """Return the number of epochs up to `cursor`: 1.5 is half-way through the second."""
        return cursor / len(self.prompts)

    def _order_of(self, epoch: int) -> Sequence[int]:
        count = len(self.prompts)
        if not self._sources:
            return self._shuffled(epoch, count)
        drawn = [one for source in self._sources for one in self._of(*source, epoch)]
        if self.shuffle:
            return [drawn[place][1] for place in self._shuffled(epoch, count)]
        return [index for _, index in sorted(drawn, key=lambda one: one[0])]  # spread evenly, each in its order

    def _of(self, indices: Sequence[int], count: int, epoch: int) -> Iterator[tuple[float, int]]:
        """Yield the `count` prompts that a source gives to an epoch: position in it, in (0, 1), and prompt's index."""
        for ahead in range(count):
            own, place = divmod(epoch * count + ahead, len(indices))
            yield (ahead + 0.5) / count, indices[self._own_order(own, len(indices))[place]]

    def _shuffled(self, epoch: int, count: int) -> Sequence[int]:
        return permutation(self.seed, epoch, count).tolist() if self.shuffle else range(count)


def _shares(count: int, weights: Sequence[float]) -> list[int]:
    """Return `count` in whole parts in the proportion of `weights`: each rounded down, the rest to the largest
    remainders.
    """
    exact = [count * weight / sum(weights) for weight in weights]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: parts[index] - exact[index])
    for index in by_remainder[: count - sum(parts) if parts else 0]:
        parts[index] += 1
    return parts


FLOOR = 0.05
"""The weight of a prompt that is always right or always wrong, almost."""

Counts = Mapping[int, tuple[int, int]]
"""By a prompt's id how many of its trained completions were right, and how many there were."""


class PassRateOrder(PromptOrder):
    """Prompts drawn by their pass rates: a function of the seed, the cursor and the counts.

    numbers   the ids of the prompts
    """

    def __init__(self, prompts: PromptSequence, seed: int, numbers: Sequence[int], floor: float = FLOOR) -> None:
        super().__init__(prompts, seed)
        self._ids, self._places = torch.tensor(numbers, dtype=torch.int64).sort()
        self._floor = floor

    def take(self, cursor: int, count: int, counts: Counts | None = None) -> tuple[list[Prompt], int]:
        """Return `count` prompts, each once where there are as many, and the cursor after them."""
        weights = torch.full((len(self),), 0.25 + self._floor, dtype=torch.float64)
        if counts:
            ids = torch.tensor(list(counts))
            right, seen = torch.tensor(list(counts.values()), dtype=torch.float64).unbind(1)
            at = torch.searchsorted(self._ids, ids).clamp(max=len(self) - 1)
            there, rate = self._ids[at] == ids, (right + 1) / (seen + 2)
            weights[self._places[at[there]]] = (rate * (1 - rate))[there] + self._floor
        order = weighted_order(self.seed, cursor, weights).tolist()
        return [self.prompts[order[ahead % len(order)]] for ahead in range(count)], cursor + count


def counted(counts: Counts, groups: Sequence[Group], right: Callable[[Score], bool | None]) -> Counts:
    """Return the counts with those of `groups`; a completion that is neither right nor wrong does not count."""
    found = dict(counts)
    for group in groups:
        verdicts = [right(score) for score in group.scores if score.valid]
        before, seen = found.get(group.prompt.id, (0, 0))
        found[group.prompt.id] = before + verdicts.count(True), seen + len(verdicts) - verdicts.count(None)
    return found


def shares(counts: Counts) -> dict[str, float]:
    """Return the shares of the prompts seen that were always right and always wrong, as metrics."""
    seen = [pair for pair in counts.values() if pair[1]]
    count = max(1, len(seen))
    return {
        "curriculum/always_right": sum(right == number for right, number in seen) / count,
        "curriculum/always_wrong": sum(right == 0 for right, _ in seen) / count,
    }
