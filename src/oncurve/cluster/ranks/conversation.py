"""The part that learners of several ranks share: calls to the other ranks in a fleet, and their answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from oncurve.learner import LocalLearner
from oncurve.parallel import LostRankError
from oncurve.processes.fleets import Failed, Fleet, ProcessEnded, Replied
from oncurve.types import TrainBatch, axes_of

_TURN_SECONDS = 1.0


class RankedLearner:
    """Rank 0's learner `local` in this process, and the others in `fleet` (None: there are none).

    members       the processes of ranks 1, 2, ...
    ended         the causes of processes that have ended, in their order
    answers       to calls, by their numbers, until they are asked for
    wait_seconds  how long a rank is waited for
    """

    local: LocalLearner

    def __init__(self, fleet: Fleet | None, wait_seconds: float) -> None:
        self.fleet, self.wait_seconds = fleet, wait_seconds
        self.members, self.ended = list[int](), dict[int, str]()
        self.answers = dict[int, Replied | Failed]()
        self.waited = 0.0

    @property
    def version(self) -> int:
        """The number of changes of the policy's weights."""
        return self.local.version

    @property
    def changes(self) -> int:
        """The number of changes, begun or made, of anything that `save` writes."""
        return self.local.changes

    def call(self, member: int, method: str, *arguments: Any) -> int:
        """Call a method of a rank's object; the number of the call."""
        assert self.fleet is not None
        return self.fleet.call(member, method, *arguments)

    def answer(self, member: int, call: int, deadline: float | None = None) -> Any:
        """Return the value of a call. Raises LostRankError: the member has ended or failed, or does not answer."""
        began = time.monotonic()
        until = began + self.wait_seconds if deadline is None else deadline
        while call not in self.answers:
            left = until - time.monotonic()
            if self.is_lost(member):
                raise LostRankError("a rank has ended")
            if left <= 0:
                raise LostRankError(
                    f"a rank has not answered within {until - began:.0f} seconds (cluster.wait_seconds)"
                )
            self.hear(min(left, _TURN_SECONDS))
        self.waited += time.monotonic() - began
        answer = self.answers.pop(call)
        if isinstance(answer, Failed):
            raise LostRankError(answer.message)
        return answer.value

    def hear(self, seconds: float) -> None:
        """Note what the processes have said or become within so many `seconds`."""
        assert self.fleet is not None
        for event in self.fleet.wait(seconds):
            if isinstance(event, ProcessEnded):
                self.ended[event.process] = event.cause
                self.has_ended(event)
            else:
                self.answers[event.number] = event

    def is_lost(self, member: int) -> bool:
        """Return whether nothing that a rank is asked for can come any more."""
        return member in self.ended

    def has_ended(self, event: ProcessEnded) -> None:
        """Act on the end of a process."""


def joined(batch: TrainBatch, parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the fields that runs of adjacent rows have got, for the whole batch: `(B, T)` padded with 0 to its
    width.
    """
    axes, width = axes_of(batch), batch.completion_ids.shape[1]

    def wide(name: str, rows: Tensor) -> Tensor:
        return pad(rows, (0, width - rows.shape[1])) if axes[name] == "BT" else rows

    return {name: torch.cat([wide(name, part[name]) for part in parts]) for name in parts[0]}
