"""A learner whose gradient is computed by several processes, so that their number cannot be seen in the result.

    rank 0     this process, with the policy that the engine samples from and that checkpoints are written of
    rank r     a process of a fleet, with a copy of policy, optimizer and reference

    accumulate   each rank the gradient of its shards; added in a fixed tree, which ends on rank 0
    apply        rank 0's gradient goes to all; each makes the same step

A fault is answered by doing the work again from a state that nothing has changed. A rank that is lost before `apply`
has changed nothing: the others keep their state, another process takes its place and copies rank 0's, and the update is
computed again. One that is lost in or after `apply` is replaced before the next update. Since the shards, not the
ranks, are part of the result, fewer ranks do as well; with none left, or after several losses in one update, rank 0
computes all shards itself. So no fault changes a bit, and none stops a run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from oncurve.base.output import urgent
from oncurve.batching import shards
from oncurve.cluster.ranks.rank import added, norm_of
from oncurve.cluster.ranks.shards import GradientShards
from oncurve.learner import Accumulated, LocalLearner, UpdateResult
from oncurve.machine.threads import computing_threads
from oncurve.metrics import Metrics
from oncurve.models import LocalWeights
from oncurve.parallel import ALONE, LostRankError, World, shards_of
from oncurve.processes.fleets import Failed, Fleet, ProcessEnded, Replied
from oncurve.types import TrainBatch, axes_of

TRIES = 3
"""Attempts: so often an update is begun with other ranks before rank 0 makes it alone."""

ABANDONED = "the work of all ranks was abandoned"

_JOIN_SECONDS = 60.0
_RESTART_SECONDS = 10.0
"""A fork is up in less than a second; one that is not joins a later update."""

_ANSWER_SECONDS = 10.0


class FleetLearner:
    """A `Learner` of one policy on 1 to N processes. All shards are computed here where `fleet` is None.

    local         rank 0's learner
    count         gradient shards: a power of two, not less than the ranks; part of the result
    threads       of each rank while it computes; part of the result
    wait_seconds  how long a rank is waited for
    """

    def __init__(self, local: LocalLearner, fleet: Fleet | None, count: int, threads: int, wait_seconds: float) -> None:
        self.local, self._fleet = local, fleet
        self._count, self._threads, self._wait = count, threads, wait_seconds
        self._world, self._members = ALONE, list[int]()
        self._state, self._state_of = 0, dict[int, int]()
        self._answers, self._ended = dict[int, Replied | Failed](), set[int]()
        self._worlds = self._lost = self._redone = 0
        self._waited = 0.0

    @property
    def version(self) -> int:
        """The number of changes of the policy's weights."""
        return self.local.version

    @property
    def changes(self) -> int:
        """The number of changes, begun or made, of anything that `save` writes."""
        return self.local.changes

    def weights(self) -> LocalWeights:
        """The policy's weights as they are now: the sampler in this process reads rank 0's model."""
        return self.local.weights()

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write what `LocalLearner.save` writes: a run may be resumed with another number of ranks, or without."""
        return self.local.save(folder)

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """The inverse of `save`. The other ranks copy rank 0 before the next update."""
        self._state += 1
        self.local.load(folder, meta)

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form."""
        self.local.export(folder)

    def rest(self) -> None:
        """End the processes: from now on rank 0 computes all shards. Twice is allowed."""
        self._world.leave()
        if self._fleet is not None:
            self._fleet.close()
        self._fleet, self._world, self._members = None, ALONE, []

    def close(self) -> None:
        """End the processes, as `rest` does."""
        self.rest()

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One optimizer update: shard by shard, added in the fixed tree."""
        with self._whole(), computing_threads(self._threads):
            accumulated = self._accumulated(minibatch)
            result = self._apply(accumulated)
        self._observe(result.metrics)
        return result

    def _observe(self, metrics: Metrics) -> None:
        if self._fleet is None:
            return
        metrics.add("cluster/ranks", float(1 + len(self._members)))
        metrics.add("cluster/ranks_lost", float(self._lost))
        metrics.add("cluster/updates_redone", float(self._redone))
        metrics.add("cluster/wait_seconds", self._waited + self._world.waited)
        self._lost = self._redone = 0
        self._waited = self._world.waited = 0.0

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """The batch with what `want` names, computed shard by shard by all ranks."""
        if not self.local.scores(want):
            return batch
        pieces = {index: piece for index, piece in enumerate(shards(batch, self._count)) if piece is not None}
        with self._whole(), computing_threads(self._threads):
            self._gather_somehow()
            calls = {
                member: self._call(member, "score", {i: pieces[i] for i in self._own(rank) if i in pieces}, want)
                for rank, member in enumerate(self._members, 1)
            }
            mine = [index for index in self._own(0) if index in pieces]
            found = {index: added(pieces[index], self.local.score(pieces[index], want)) for index in mine}
            for answer in self._answers_of(list(calls.items())):
                found |= answer.value if isinstance(answer, Replied) else {}
            for index, piece in pieces.items():  # what a lost rank had
                if index not in found:
                    found[index] = added(piece, self.local.score(piece, want))
        return batch.having(**joined(batch, [found[index] for index in sorted(found)]))

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref, on all ranks."""
        before = self.local.changes
        with self._whole(), computing_threads(self._threads):
            self._state += 1
            self.local.move_reference(alpha)
            if self.local.changes == before:
                self._state -= 1
                return
            calls = [(member, self._call(member, "move_reference", alpha)) for member in self._in_step(self._state - 1)]
            self._note(calls, None)

    def _accumulated(self, minibatch: TrainBatch) -> Accumulated:
        """The whole gradient, in rank 0's `.grad`. Nothing else has changed."""
        cut = GradientShards.of(self.local, minibatch, self._count)
        for _ in range(TRIES):
            try:
                self._gather()
                return cut.joined(minibatch, self._shared(cut))
            except LostRankError:
                self._redone += 1
            self._leave()
        urgent(f"oncurve: an update has lost ranks {TRIES} times; rank 0 makes it alone, to the same bits")
        return cut.joined(minibatch, cut.summed())

    def _shared(self, cut: GradientShards) -> dict[int, Accumulated]:
        """Loss and statistics of all shards; their gradient is in `.grad`. Raises LostRankError."""
        calls = {
            member: self._call(member, "accumulate", {i: cut.pieces[i] for i in self._own(rank)}, self._count)
            for rank, member in enumerate(self._members, 1)
        }
        found = cut.summed(self._world)
        for member, call in calls.items():
            found |= self._value(member, call)
        return found

    def _apply(self, accumulated: Accumulated) -> UpdateResult:
        """The step on all ranks. From here on the update is made, whoever is lost."""
        members = self._in_step(self._state)
        self._state += 1
        calls = [(member, self._call(member, "apply", float(accumulated.loss))) for member in members]
        try:
            self._world.broadcast(list(self.local.optimizer.gradients().values()))
        except LostRankError:
            self._world.leave()  # those that have the gradient go on, the others copy the result
        result = self.local.apply(accumulated)
        made = (self.version, norm_of(result.metrics))
        self._note(calls, made)
        return result

    def _note(self, calls: Sequence[tuple[int, int]], expected: object) -> None:
        """Members that give the `expected` answer are as rank 0 is; the others are to copy it."""
        for answer in self._answers_of(calls):
            if isinstance(answer, Replied) and answer.value == expected:
                self._state_of[answer.process] = self._state

    def _answers_of(self, calls: Sequence[tuple[int, int]]) -> list[Replied | Failed]:
        """The answers to the `calls` of members. Where one is lost, the others that came; the world is left then."""
        found: list[Replied | Failed] = []
        for member, call in calls:
            with suppress(LostRankError):
                found.append(self._answer(member, call))
        if len(found) < len(calls) or any(isinstance(answer, Failed) for answer in found):
            self._leave()
        return found

    def _in_step(self, state: int) -> list[int]:
        return [member for member in self._members if self._state_of.get(member) == state]

    def _own(self, rank: int) -> range:
        return shards_of(rank, self._world.size, self._count)

    def _gather_somehow(self) -> None:
        """A world of the processes that can be gathered; of this one alone after several losses."""
        for _ in range(TRIES):
            with suppress(LostRankError):
                self._gather()
                break
            self._leave()

    def _gather(self) -> None:
        """A world of all processes that are up, each as rank 0 is. Raises LostRankError."""
        if self._fleet is None:
            return
        self._hear(0.0)
        up = self._fleet.settled(_RESTART_SECONDS if self._worlds else self._wait)
        if up != self._members or self._world.size != 1 + len(up):
            self._join(up)
        for rank, member in enumerate(self._members, 1):
            if self._state_of.get(member, 0) != self._state:
                record, tensors = self.local.state()
                shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
                call = self._call(member, "take_over", record, shapes)
                self._world.send([tensor.contiguous() for tensor in tensors.values()], rank)
                self._value(member, call)
            self._state_of[member] = self._state

    def _join(self, members: list[int]) -> None:
        assert self._fleet is not None
        self._leave()
        self._worlds += 1
        meeting, size = self._fleet.meeting(), 1 + len(members)
        calls = [(member, self._call(member, "join", rank, size, meeting)) for rank, member in enumerate(members, 1)]
        self._members = members
        self._world = World.join(0, size, meeting, self._wait, _JOIN_SECONDS)
        for member, call in calls:
            self._value(member, call)

    def _leave(self) -> None:
        """Leave the world after a loss. Members that do not return from it soon are ended."""
        self._world.leave()
        assert self._fleet is not None
        pings = [(member, self._call(member, "join", 0, 1, None)) for member in self._members]
        deadline = time.monotonic() + _ANSWER_SECONDS
        for member, ping in pings:
            try:
                self._answer(member, ping, deadline)
            except LostRankError:
                self._fleet.kill(member, f"it did not leave a lost update within {_ANSWER_SECONDS:g} seconds")
        self._world, self._members = ALONE, []
        self._answers.clear()  # of calls that were given up

    def _call(self, member: int, method: str, *arguments: Any) -> int:
        assert self._fleet is not None
        return self._fleet.call(member, method, *arguments)

    def _value(self, member: int, call: int) -> Any:
        """The value of a call. Raises LostRankError: the member has ended, has lost another, or does not answer."""
        answer = self._answer(member, call)
        if isinstance(answer, Failed):
            raise LostRankError(answer.message)
        return answer.value

    def _answer(self, member: int, call: int, deadline: float | None = None) -> Replied | Failed:
        """The answer to a call. Raises LostRankError: the member has ended, or does not answer."""
        began = time.monotonic()
        until = began + self._wait if deadline is None else deadline
        while call not in self._answers:
            left = until - time.monotonic()
            if member in self._ended or left <= 0:
                late = f"does not answer within {until - began:.0f} seconds (cluster.wait_seconds)"
                raise LostRankError(f"rank {member} {'has ended' if member in self._ended else late}")
            self._hear(min(left, 1.0))
        self._waited += time.monotonic() - began
        return self._answers.pop(call)

    def _hear(self, seconds: float) -> None:
        """Note what the processes have said or become within so many `seconds`, and tell of those that were lost."""
        assert self._fleet is not None
        for event in self._fleet.wait(seconds):
            if not isinstance(event, ProcessEnded):
                self._answers[event.number] = event
                continue
            self._ended.add(event.process)
            self._state_of.pop(event.process, None)
            if event.cause == ABANDONED:
                continue
            self._lost += 1
            if event.told and not event.quarantine:
                continue
            which = f"rank {self._members.index(event.process) + 1}" if event.process in self._members else "a rank"
            urgent(f"oncurve: {which} was lost: {event.cause}; the run goes on to the same bits{event.consequence}")

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Within: whatever interrupts the work of all ranks ends the others, which may be anywhere in it."""
        try:
            yield
        except BaseException:
            self._world.leave()
            for member in self._members:
                if self._fleet is not None:
                    self._fleet.kill(member, ABANDONED)
            self._world, self._members = ALONE, []
            raise


def joined(batch: TrainBatch, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The fields that runs of adjacent rows have got, for the whole batch: `(B, T)` padded with 0 to its width."""
    axes, width = axes_of(batch), batch.completion_ids.shape[1]
    return {
        name: torch.cat([_wide(part[name], width) if axes[name] == "BT" else part[name] for part in parts])
        for name in parts[0]
    }


def _wide(rows: Tensor, width: int) -> Tensor:
    return pad(rows, (0, width - rows.shape[1]))
