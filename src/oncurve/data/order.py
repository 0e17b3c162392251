"""The order of prompts: a pure function of seed and cursor, so a resumed run continues where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from oncurve.errors import DataError
from oncurve.randomness import permutation
from oncurve.types import Prompt


class _PromptSequence(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...


class PromptOrder:
    """Endless epochs over `prompts`. Cursor c is position `c mod n` of epoch `c div n`, n the number of prompts.

    Epoch e has the order `permutation(seed, e, n)`, or that of `prompts` without `shuffle`. A batch may span epochs (no
    remainder is dropped), so a prompt occurs twice in a batch only across such a boundary, or where the batch is larger
    than the data.
    """

    def __init__(self, prompts: _PromptSequence, seed: int, shuffle: bool = True) -> None:
        if not len(prompts):
            raise DataError("data: there are no prompts, so there is nothing to train on")
        self.prompts = prompts
        self.seed = seed
        self.shuffle = shuffle
        self._order = lru_cache(maxsize=2)(self._order_of)  # a batch rarely spans more than two epochs

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, cursor: int, count: int) -> tuple[list[Prompt], int]:
        """The `count` prompts from `cursor` on, and the cursor after them. Raises ValueError: count < 1, cursor < 0."""
        if count < 1 or cursor < 0:
            raise ValueError(f"take(cursor={cursor}, count={count}): needs a cursor >= 0 and a count >= 1")
        places = (divmod(cursor + ahead, len(self.prompts)) for ahead in range(count))
        return [self.prompts[self._order(epoch)[place]] for epoch, place in places], cursor + count

    def epoch(self, cursor: int) -> float:
        """The number of epochs up to `cursor`: 1.5 is half-way through the second."""
        return cursor / len(self.prompts)

    def _order_of(self, epoch: int) -> Sequence[int]:
        count = len(self.prompts)
        return permutation(self.seed, epoch, count).tolist() if self.shuffle else range(count)
