"""Which step trains a group, where groups are trained in the order in which they are finished.

M groups per step, and a lag of k. A group that began with the weights after j steps must be trained by step j + 1 + k,
its *deadline*: then these weights are at most k steps older than those that the step begins with. A finished group is
trained by the earliest step that has room for it, unless that room is needed for groups with an earlier deadline that
still grow.

That always works out where at most M (j + 1 + k) groups have begun before the weights after step j + 1 exist: of those
with a deadline up to step D there are no more than the steps up to D have room for, and each placement keeps it so.
"""

from __future__ import annotations

from collections import Counter

from oncurve.types import Group


class Window:
    """The groups of the steps after `done`, by their positions in the order of prompts.

    prompts   M, groups per step
    lag       k
    done      the steps before; the newest weights are those after it

    Positions are placed once each. The groups that wait for their step are kept here.
    """

    def __init__(self, prompts: int, lag: int, done: int) -> None:
        self.prompts, self.lag = prompts, lag
        self._done, self._newest = done, done
        self._began: dict[int, int] = {}
        self._taken: Counter[int] = Counter()
        self._placed: dict[int, list[int]] = {}
        self._groups: dict[int, list[Group]] = {}

    def newest(self, steps: int) -> None:
        """What begins from now on begins with the weights after so many steps."""
        self._newest = steps

    def begins(self, position: int) -> None:
        """The group at `position` begins, or begins again, with the newest weights."""
        self._began[position] = self._newest

    def finished(self, position: int, group: Group) -> int:
        """Return the step that trains the group at `position`, which is complete. Raises ValueError: no step can."""
        deadline = self._began.pop(position) + 1 + self.lag
        for step in range(self._done + 1, deadline + 1):
            if self._taken[step] < self.prompts and all(self._spare(by) for by in range(step, deadline)):
                self._taken[step] += 1
                self._placed.setdefault(step, []).append(position)
                self._groups.setdefault(step, []).append(group)
                return step
        raise ValueError(f"no step up to {deadline} has room for the group at {position}")

    def positions(self, step: int) -> tuple[int, ...]:
        """Of the groups that `step` trains, as far as they are finished."""
        return tuple(self._placed.get(step, ()))

    def complete(self, step: int) -> bool:
        """Return whether all groups of `step` are there."""
        return self._taken[step] == self.prompts

    def groups(self, step: int, after: int) -> list[Group]:
        """Those of `step` in the order in which they were finished, without the first `after`."""
        return self._groups.get(step, [])[after:]

    def forget(self, step: int) -> None:
        """The groups of `step` are with their step; their positions stay."""
        self._groups.pop(step, None)

    def _spare(self, by: int) -> bool:
        """Return whether the steps up to `by` have room for a group more than those that must be trained by then."""
        room = self.prompts * (by - self._done) - sum(self._taken[step] for step in range(self._done + 1, by + 1))
        return room > sum(began + 1 + self.lag <= by for began in self._began.values())
