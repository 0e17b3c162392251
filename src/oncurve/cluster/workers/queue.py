"""The shards of a rollout that several processes share, and which of them wait for a process.

Rows that are decoded in one batch share matrix products, whose rounding depends on the batch's shape. So the shards are
a function of the batch alone, and with them the result, whatever processes decode them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from oncurve.cluster.workers.weights import Sending
from oncurve.rollout import OnGroup, Sampling, count_samples
from oncurve.types import Group, Prompt


@dataclass(frozen=True)
class Lost:
    """The answer of a worker that can do nothing more, in place of groups: it is ended because of `cause`."""

    cause: str


def rollout_shards(prompts: int, groups: int) -> list[range]:
    """Runs of `groups` adjacent prompts, by their indices; the last may be shorter. Raises ValueError: `groups` < 1.

    Example: of 10 prompts by 4 groups, 0 to 3, 4 to 7, and 8 and 9.
    """
    if groups < 1:
        raise ValueError(f"a shard needs a group at least, and shard_groups is {groups}")
    return [range(first, min(first + groups, prompts)) for first in range(0, prompts, groups)]


@dataclass
class Rollout:
    """The prompts of one call of `FleetEngine.generate`.

    firsts    the sample index that each prompt's group begins at
    shards    prompts that are decoded together, by their indices
    queue     shards that no process has
    own       shards that the driver is to decode
    losses    by shard, how many workers were lost with it
    refused   by shard, why a worker could not decode it
    groups    by prompt, those that have come
    """

    prompts: Sequence[Prompt]
    firsts: Sequence[int]
    draw: int
    sampling: Sampling
    on_group: OnGroup | None
    shards: list[range]
    queue: deque[int] = field(init=False)
    own: deque[int] = field(default_factory=deque)
    losses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[int, str] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling,
        shard_groups: int,
        on_group: OnGroup | None,
        firsts: Sequence[int] | None = None,
    ) -> Rollout:
        """The prompts in shards of `shard_groups`; without `firsts` samples are counted within `prompts`."""
        firsts = count_samples(prompts, sampling.group_size) if firsts is None else firsts
        return cls(prompts, firsts, draw, sampling, on_group, rollout_shards(len(prompts), shard_groups))

    def __post_init__(self) -> None:
        self.queue = deque(range(len(self.shards)))

    @property
    def done(self) -> bool:
        """Return whether every prompt has its group."""
        return len(self.groups) == len(self.prompts)

    def begin(self, index: int) -> tuple[list[Prompt], list[int]]:
        """Prompts and first samples of a shard that is decoded now."""
        shard = self.shards[index]
        return [self.prompts[i] for i in shard], [self.firsts[i] for i in shard]

    def leave_to_driver(self) -> None:
        """The shards that no process has are for the driver."""
        self.own.extend(self.queue)
        self.queue.clear()

    def keep(self, index: int, groups: Sequence[Group]) -> int:
        """The groups of a shard have come: the number of their tokens, if the shard was lost before; otherwise 0."""
        for prompt, group in zip(self.shards[index], groups, strict=True):
            self.groups[prompt] = group
            if self.on_group is not None:
                self.on_group(prompt, group)
        return sum(len(row.ids) for group in groups for row in group.completions) if index in self.losses else 0


@dataclass
class Call:
    """A call that a worker is doing.

    index        of the shard of `rollout`; None: of one that was given up
    sending      the weights by which it decodes; their copy is there as long as the worker may read it
    """

    number: int
    rollout: Rollout
    index: int | None
    sending: Sending
    began: float
    deadline: float
