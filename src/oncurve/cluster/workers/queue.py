"""The shards of a rollout that several processes share, and which of them wait for a process.

Rows that are decoded in one batch share matrix products, whose rounding depends on the batch's shape. So the shards are
a function of the batch alone, and with them the result, whatever processes decode them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from oncurve.cluster.workers.weights import Snapshot
from oncurve.rollout import OnGroup, Sampling, count_samples
from oncurve.types import Group, Prompt


def rollout_shards(prompts: int, groups: int) -> list[range]:
    """Return runs of `groups` adjacent prompts, by their indices; the last may be shorter.

    Example: of 10 prompts by 4 groups, 0 to 3, 4 to 7, and 8 and 9.
    """
    return [range(first, min(first + groups, prompts)) for first in range(0, prompts, groups)]


class Rollout:
    """The prompts of one call of `FleetEngine.generate`, in shards of `shard_groups`.

    firsts    the sample index that each prompt's group begins at; None: samples are counted within `prompts`
    queue     shards that no process has
    own       shards that the driver is to decode
    losses    by shard, how many workers were lost with it
    groups    by prompt, those that have come
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling,
        shard_groups: int,
        on_group: OnGroup | None,
        firsts: Sequence[int] | None,
    ) -> None:
        self.prompts, self.draw, self.sampling, self._on_group = prompts, draw, sampling, on_group
        self._firsts = count_samples(prompts, sampling.group_size) if firsts is None else firsts
        self._shards = rollout_shards(len(prompts), shard_groups)
        self.queue, self.own = deque(range(len(self._shards))), deque[int]()
        self.losses, self.groups = Counter[int](), dict[int, Group]()

    @property
    def done(self) -> bool:
        """Return whether every prompt has its group."""
        return len(self.groups) == len(self.prompts)

    def begin(self, index: int) -> tuple[list[Prompt], list[int]]:
        """Return prompts and first samples of a shard that is decoded now."""
        shard = self._shards[index]
        return [self.prompts[i] for i in shard], [self._firsts[i] for i in shard]

    def keep(self, index: int, groups: Sequence[Group]) -> None:
        """Take the groups of a shard."""
        for prompt, group in zip(self._shards[index], groups, strict=True):
            self.groups[prompt] = group
            if self._on_group is not None:
                self._on_group(prompt, group)


@dataclass
class Call:
    """A call that a worker is doing.

    index        of the rollout's shard; None: of one that was given up
    snapshot     the weights by which it decodes; their copy is there as long as the worker may read it
    began        when the worker got it, in seconds of `time.perf_counter`
    """

    number: int
    index: int | None
    snapshot: Snapshot
    began: float
    deadline: float
