"""A learner whose gradient is computed by several processes, so that their number cannot be seen in the result.

    rank 0     this process, with the policy that the engine samples from and that checkpoints are written of
    rank r     a process of a fleet, with a copy of policy, optimizer and reference

    accumulate   each rank the gradient of its shards; added in a fixed tree, which ends on rank 0
    apply        rank 0's gradient goes to all; each makes the same step

A fault is answered by doing the work again from a state that nothing has changed. A rank that is lost before `apply`
has changed nothing: the others keep their state, another process takes its place and copies rank 0's, and the work is
done again. One that is lost in or after `apply` is replaced before the next update. Since the shards, not the ranks,
are part of the result, fewer ranks do as well; with none left, or after several losses in one update, rank 0 computes
all shards itself. So no fault changes a bit, and none stops a run.

`RankedLearner` is the part that learners of several ranks share: calls to the other ranks, and their answers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from oncurve.base.output import urgent
from oncurve.cluster.ranks.rank import GradientShards, added, few_shards, norm_of
from oncurve.learner import Accumulated, LocalLearner, UpdateResult, state_of
from oncurve.machine.threads import computing_threads
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

_ANSWER_SECONDS, _TURN_SECONDS = 10.0, 1.0

Found = TypeVar("Found")


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


class FleetLearner(RankedLearner):
    """A `Learner` of one policy on 1 to N processes. All shards are computed here where `fleet` is None.

    local         rank 0's learner
    count         gradient shards at most: a power of two; part of the result
    threads       of each rank while it computes; part of the result
    """

    def __init__(self, local: LocalLearner, fleet: Fleet | None, count: int, threads: int, wait_seconds: float) -> None:
        super().__init__(fleet, wait_seconds)
        self.local, self._count, self._threads = local, count, threads
        self._world = ALONE
        self._state, self._state_of = 0, dict[int, int]()
        self._worlds = self._lost = self._redone = 0

    def weights(self) -> LocalWeights:
        """Return the policy's weights as they are now: the sampler in this process reads rank 0's model."""
        return self.local.weights()

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write what `LocalLearner.save` writes: a run may be resumed with another number of ranks, or without."""
        return self.local.save(folder)

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote. The other ranks copy rank 0 before the next update."""
        self._state += 1
        self.local.load(folder, meta)

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form."""
        self.local.export(folder)

    def rest(self) -> None:
        """End the processes: from now on rank 0 computes all shards. Twice is allowed."""
        self._world.leave()
        if self.fleet is not None:
            self.fleet.close()
        self.fleet, self._world, self.members = None, ALONE, []

    close = rest

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one optimizer update: shard by shard, added in the fixed tree."""
        rows = self.local.rows_of(minibatch)
        cut = GradientShards(self.local, [None] if rows is None else few_shards(rows, self._count))
        with self._whole():
            found = self._together(lambda: self._shared(cut))
            if found is None:
                urgent(f"oncurve: an update has lost ranks {TRIES} times; rank 0 makes it alone, to the same bits")
                found = cut.summed()
            result = self._apply(cut.joined(minibatch, found))
        if self.fleet is not None:
            result.metrics.add("cluster/ranks", float(1 + len(self.members)))
            result.metrics.add("cluster/ranks_lost", float(self._lost))
            result.metrics.add("cluster/updates_redone", float(self._redone))
            result.metrics.add("cluster/wait_seconds", self.waited + self._world.waited)
            self._lost = self._redone = 0
            self.waited = self._world.waited = 0.0
        return result

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """Return the batch with what `want` names, computed shard by shard by all ranks."""
        if not self.local.scores(want):
            return batch
        pieces = few_shards(batch, self._count)

        def own(rank: int, size: int) -> dict[int, TrainBatch]:
            each = shards_of(rank, size, len(pieces))
            return {index: piece for index in each if (piece := pieces[index]) is not None}

        def mine(size: int = 1) -> dict[int, dict[str, Tensor]]:
            return {i: added(piece, self.local.score(piece, want)) for i, piece in own(0, size).items()}

        def shared() -> dict[int, dict[str, Tensor]]:
            size = self._world.size
            calls = self._call_all("score", lambda rank: (own(rank, size), want))
            found = mine(size)
            for member, call in calls:
                found |= self.answer(member, call)
            return found

        with self._whole():
            found = self._together(shared) or mine()
        return batch.having(**joined(batch, [found[index] for index in sorted(found)]))

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref, on all ranks."""
        before = self.local.changes
        with self._whole():
            self.local.move_reference(alpha)
            if self.local.changes != before:
                members = self._in_step()
                self._state += 1
                self._note([(member, self.call(member, "move_reference", alpha)) for member in members], None)

    def _together(self, work: Callable[[], Found]) -> Found | None:
        """Return `work()` in a world of all processes; again after a loss. None: after several there was a loss."""
        for _ in range(TRIES):
            with suppress(LostRankError):
                self._gather()
                return work()
            self._redone += 1
            self._leave()
        return None

    def _shared(self, cut: GradientShards) -> dict[int, Accumulated]:
        """Return loss and statistics of all shards; their gradient is in `.grad`. Raises LostRankError."""
        size, count = self._world.size, len(cut.pieces)
        calls = self._call_all(
            "accumulate", lambda rank: ({i: cut.pieces[i] for i in shards_of(rank, size, count)}, count)
        )
        found = cut.summed(self._world)
        for member, call in calls:
            found |= self.answer(member, call)
        return found

    def _apply(self, accumulated: Accumulated) -> UpdateResult:
        """Return the step on all ranks. From here on the update is made, whoever is lost."""
        members = self._in_step()
        self._state += 1
        calls = [(member, self.call(member, "apply", float(accumulated.loss))) for member in members]
        with suppress(LostRankError):  # those that have the gradient go on, the others copy the result
            self._world.broadcast(list(self.local.optimizer.gradients().values()))
        result = self.local.apply(accumulated)
        self._note(calls, (self.version, norm_of(result.metrics)))
        return result

    def _note(self, calls: Sequence[tuple[int, int]], expected: object) -> None:
        """Note that members which give the `expected` answer are as rank 0 is. The others are to copy it; where one is
        lost, the world is left."""
        lost = False
        for member, call in calls:
            try:
                if self.answer(member, call) == expected:
                    self._state_of[member] = self._state
            except LostRankError:
                lost = True
        if lost:
            self._leave()

    def _in_step(self) -> list[int]:
        return [member for member in self.members if self._state_of.get(member) == self._state]

    def _call_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[tuple[int, int]]:
        """Call a method of each member's object with the `arguments` of its rank; members with their calls."""
        return [(member, self.call(member, method, *arguments(rank))) for rank, member in enumerate(self.members, 1)]

    def _gather(self) -> None:
        """Make a world of all processes that are up, each as rank 0 is. Raises LostRankError."""
        if self.fleet is None:
            return
        self.hear(0.0)
        up = self.fleet.settled(_RESTART_SECONDS if self._worlds else self.wait_seconds)
        if up != self.members or self._world.size != 1 + len(up):
            self._join(up)
        for rank, member in enumerate(self.members, 1):
            if self._state_of.get(member, 0) != self._state:
                record, tensors = state_of(self.local)
                shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
                call = self.call(member, "take_over", record, shapes)
                self._world.send([tensor.contiguous() for tensor in tensors.values()], rank)
                self.answer(member, call)
            self._state_of[member] = self._state

    def _join(self, members: list[int]) -> None:
        assert self.fleet is not None
        self._leave()
        self._worlds += 1
        meeting, size = self.fleet.meeting(), 1 + len(members)
        self.members = members
        calls = self._call_all("join", lambda rank: (rank, size, meeting))
        self._world = World.join(0, size, meeting, self.wait_seconds, _JOIN_SECONDS)
        for member, call in calls:
            self.answer(member, call)

    def _leave(self) -> None:
        """Leave the world after a loss. Members that do not return from it soon are ended."""
        self._world.leave()
        assert self.fleet is not None
        deadline = time.monotonic() + _ANSWER_SECONDS
        for member, ping in self._call_all("join", lambda rank: (0, 1, None)):
            try:
                self.answer(member, ping, deadline)
            except LostRankError:
                self.fleet.kill(member, f"it did not leave a lost update within {_ANSWER_SECONDS:g} seconds")
        self._world, self.members = ALONE, []
        self.answers.clear()  # of calls that were given up

    def has_ended(self, event: ProcessEnded) -> None:
        """Tell of a rank that was lost."""
        self._state_of.pop(event.process, None)
        if event.cause == ABANDONED:
            return
        self._lost += 1
        which = f"rank {self.members.index(event.process) + 1}" if event.process in self.members else "a rank"
        urgent(f"oncurve: {which} was lost: {event.cause}; the run goes on to the same bits{event.consequence}")

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Within: whatever interrupts the work of all ranks ends the others, which may be anywhere in it."""
        try:
            with computing_threads(self._threads):
                yield
        except BaseException:
            self._world.leave()
            for member in self.members:
                if self.fleet is not None:
                    self.fleet.kill(member, ABANDONED)
            self._world, self.members = ALONE, []
            raise


def joined(batch: TrainBatch, parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the fields that runs of adjacent rows have got, for the whole batch: `(B, T)` padded with 0 to its
    width.
    """
    axes, width = axes_of(batch), batch.completion_ids.shape[1]

    def wide(name: str, rows: Tensor) -> Tensor:
        return pad(rows, (0, width - rows.shape[1])) if axes[name] == "BT" else rows

    return {name: torch.cat([wide(name, part[name]) for part in parts]) for name in parts[0]}
