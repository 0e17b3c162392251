"""The curriculum: prompts that the policy gets right now and then are drawn more often than the others.

    p̂ = (right + 1) / (seen + 2)        w = p̂ (1 - p̂) + floor        a prompt without counts: w = 1/4 + floor

Each batch is drawn without repetition, a prompt first with a probability in proportion to w (an exponential race:
Efraimidis and Spirakis, Inf. Process. Lett. 2006). A group whose completions are all right or all wrong has advantages
of 0; the floor brings its prompt back now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from oncurve.data.order import PromptOrder, PromptSequence
from oncurve.randomness import weighted_order
from oncurve.types import Group, Prompt, Score

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
