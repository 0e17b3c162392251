"""The shards of a rollout: which prompts are decoded together.

Rows that are decoded in one batch share matrix products, whose rounding depends on the batch's shape. So the shards are
a function of the batch alone, and with them the result, whatever processes decode them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lost:
    """What a worker answers in place of groups where it can do nothing more: it is ended because of `cause`."""

    cause: str


def rollout_shards(prompts: int, groups: int) -> list[range]:
    """Runs of `groups` adjacent prompts, by their indices; the last may be shorter. Raises ValueError: `groups` < 1.

    Example: of 10 prompts by 4 groups, 0 to 3, 4 to 7, and 8 and 9.
    """
    if groups < 1:
        raise ValueError(f"a shard needs a group at least, and shard_groups is {groups}")
    return [range(first, min(first + groups, prompts)) for first in range(0, prompts, groups)]
