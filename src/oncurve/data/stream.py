"""The order of prompts: a pure function of seed and cursor, so a resumed run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from oncurve.errors import DataError
from oncurve.randomness import permutation
from oncurve.types import Prompt

__all__ = ["PromptStream"]


class _PromptSequence(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...


class PromptStream:
    """Endless epochs over `prompts`. Cursor c is place `c mod n` of epoch `c div n`, n the number of prompts.

    Epoch e visits them in the order `permutation(seed, e, n)`, or as they are without `shuffle`. A batch may span
    epochs (no rest is thrown away), so a prompt comes twice in a batch only across such a boundary, or where the
    batch is larger than the data.
    """

    def __init__(self, prompts: _PromptSequence, seed: int, shuffle: bool = True) -> None:
        if not len(prompts):
            raise DataError("data: there are no prompts; a stream of none would train zero steps")
        self.prompts = prompts
        self.seed = seed
        self.shuffle = shuffle
        self._order = lru_cache(maxsize=2)(self._order_of)  # a batch touches two epochs as a rule, at most

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, cursor: int, count: int) -> tuple[list[Prompt], int]:
        """The `count` prompts from `cursor` on, and the cursor after them. Raises ValueError: count < 1, cursor < 0."""
        if count < 1 or cursor < 0:
            raise ValueError(f"take(cursor={cursor}, count={count}): needs a cursor >= 0 and a count >= 1")
        places = (divmod(cursor + ahead, len(self.prompts)) for ahead in range(count))
        return [self.prompts[self._order(epoch)[place]] for epoch, place in places], cursor + count

    def epoch(self, cursor: int) -> float:
        """How many times the data has been gone through at `cursor`: 1.5 is half-way in the second epoch."""
        return cursor / len(self.prompts)

    def _order_of(self, epoch: int) -> Sequence[int]:
        count = len(self.prompts)
        return permutation(self.seed, epoch, count).tolist() if self.shuffle else range(count)
