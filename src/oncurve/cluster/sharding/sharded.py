"""A learner whose parameters, gradients and optimizer state are divided among several processes by FSDP2.

    rank 0      this process: its shard, and a whole copy in the compute dtype, which the engine samples from
    rank r      a process of a fleet: its shard alone

A rank that is lost takes its shard with it, so an update cannot be done again from what is left. All ranks then end,
and the first cause is raised as a LostStateError: the run goes back to its last checkpoint, with a new learner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ConfigError, LostStateError, OncurveError, TrainingError
from oncurve.batching import select_rows, shards
from oncurve.cluster.ranks import GradientShards, joined
from oncurve.cluster.sharding.connection import join, leave
from oncurve.cluster.sharding.shard_learner import RankRows, ShardLearner
from oncurve.durable import LazyTensors, StorageError, temporary_name
from oncurve.learner import UpdateResult, widened
from oncurve.machine.threads import computing_threads, return_freed_memory
from oncurve.models import LocalWeights, save
from oncurve.parallel import LostRankError
from oncurve.processes.fleets import CPU, Failed, Fleet, ProcessEnded, Replied
from oncurve.types import TrainBatch

_ADVICE = (
    "The run goes on from its last checkpoint with `oncurve resume` and its folder, and with fewer ranks where "
    "cluster.learner_ranks is lower"
)
_CAUSE_SECONDS = 5.0
_TURN_SECONDS = 0.5


class ShardedLearner:
    """A `Learner` of one policy in shards, on this process and those of `fleet` (None: this one alone).

    make          builds the learner of a rank, given its class as `make`
    threads       of each rank while it computes
    wait_seconds  the longest wait for another rank
    device        the one that all ranks compute on, as each calls its own
    """

    def __init__(
        self,
        make: Callable[..., Any],
        fleet: Fleet | None,
        ranks: int,
        threads: int,
        wait_seconds: float,
        device: torch.device = CPU,
    ) -> None:
        self._fleet, self._ranks, self._threads, self._wait = fleet, ranks, threads, wait_seconds
        self._device = device
        self._answers: dict[int, Replied | Failed] = {}
        self._members: list[int] = []
        self._lost: LostStateError | None = None
        self._masters: dict[str, torch.Tensor] | None = None
        self._waited = 0.0
        return_freed_memory()
        try:
            self.local = self._begin(make)
        except BaseException:
            self.close()
            raise

    def _begin(self, make: Callable[..., Any]) -> ShardLearner:
        meeting = None
        if self._fleet is not None:
            self._members = self._started(self._fleet)
            try:
                meeting = self._fleet.meeting()
            except LostRankError as error:
                raise TrainingError(str(error)) from error
        with self._all("join", *((rank, self._ranks, meeting) for rank in range(1, self._ranks))):
            join(0, self._ranks, meeting, self._wait, self._device)
            local: ShardLearner = make(make=ShardLearner)
        return local

    def _started(self, fleet: Fleet) -> list[int]:
        """The processes that are up, as soon as there is one for each other rank; a place may need a second attempt.

        Raises TrainingError: they do not start within the limit.
        """
        until, cause = time.monotonic() + self._wait, ""
        while True:
            left = until - time.monotonic()
            members = fleet.settled(max(0.0, left))
            if len(members) >= self._ranks - 1:
                return members
            if left <= 0:
                raise TrainingError(f"only {1 + len(members)} of {self._ranks} ranks have started{cause}")
            for event in fleet.wait(_TURN_SECONDS):
                cause = cause or (f": {event.cause}" if isinstance(event, ProcessEnded) else "")

    @property
    def version(self) -> int:
        """The number of changes of the policy's weights."""
        return self.local.version

    @property
    def changes(self) -> int:
        """The number of changes, begun or made, of anything that `save` writes."""
        return self.local.changes

    def weights(self) -> LocalWeights:
        """The policy's weights as they are now: rank 0's whole copy in the compute dtype."""
        return LocalWeights(self.local.whole, self.version)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """One optimizer update of all ranks, which have the rows with a gradient in equal parts."""
        cut = GradientShards.of(self.local, minibatch, self._ranks)
        parts = self._parts(minibatch, cut.pieces)
        with self._all("update", *((part,) for part in parts[1:])) as answers:
            result, own = self.local.update_part(parts[0])
        if not result.skipped:
            found = dict(enumerate([own, *answers]))
            result.metrics.merge(cut.joined(minibatch, found).metrics)
        if self._members:
            result.metrics.add("cluster/ranks", float(self._ranks))
            result.metrics.add("cluster/wait_seconds", self._waited)
        self._waited = 0.0
        return result

    def _parts(self, batch: TrainBatch, runs: Sequence[TrainBatch | None]) -> list[RankRows]:
        """The runs of a batch's rows, one per rank; an empty one gets a row at weight 0."""
        shortest = select_rows(batch, batch.lengths.argmin()[None])
        return [RankRows(shortest if run is None else run, run is not None) for run in runs]

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """The batch with what `want` names, without a gradient, computed by all ranks."""
        if not self.local.scores(want):
            return batch
        parts = self._parts(batch, shards(batch, self._ranks))
        with self._all("score", *((part, want) for part in parts[1:])) as answers:
            own = self.local.score_part(parts[0], want)
        found = [value for value, part in zip([own, *answers], parts, strict=True) if part.counts]
        return batch.having(**joined(batch, found))

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref, by every rank for its rows."""
        with self._all("move_reference", *((alpha,) for _ in self._members)):
            self.local.move_reference(alpha)

    def check_folder(self, folder: Path) -> None:
        """Raises ConfigError: another rank does not see `folder`, into which all of them write checkpoints."""
        probe = temporary_name(folder.absolute() / "probe")
        probe.touch()
        try:
            with self._all("sees", *((probe,) for _ in self._members)) as seen:
                pass
        finally:
            probe.unlink()
        if not all(seen):
            raise ConfigError(
                f'{folder}: with cluster.sharding = "fsdp" each rank writes its part of a checkpoint there, and rank '
                f"{1 + seen.index(False)} on another machine does not see this folder; choose an --out that all "
                "machines share under one name"
            )

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Each rank writes its own file into `folder`; the record. Any number of ranks can load it.

        Raises StorageError, once no rank writes any more: the disk refused one of the files, and no rank is lost by it.
        """
        record: dict[str, Any] = {}
        refused: StorageError | None = None
        with self._all("save", *((folder.absolute(),) for _ in self._members)) as answers:
            try:
                record = self.local.save(folder)
            except StorageError as error:
                refused = error
        if refused := next((error for error in [refused, *answers] if error is not None), None):
            raise refused.renamed(str(folder.absolute()), str(folder))
        return record

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """The inverse of `save`, bit for bit, on any number of ranks. Raises CheckpointError for another model's."""
        with self._all("load", *((folder.absolute(), meta) for _ in self._members)):
            self.local.load(folder, meta)

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face form from the float32 shards, of which one parameter at a time is whole.

        An adapter is merged into the weights, and written to the folder `adapter` in it as well.
        """
        model = self.local.whole
        parameters = dict(model.module.named_parameters())

        def made(name: str) -> torch.Tensor:
            one = parameters[name]
            return self._whole_master(name) if one.requires_grad else widened(one.detach())

        save(model.module, self.local.tokenizer, folder, LazyTensors(parameters, made), adapter=model.adapter)

    def _whole_master(self, name: str) -> torch.Tensor:
        if self._masters is not None:
            return self._masters[name]
        with self._all("whole_master", *((name,) for _ in self._members)):
            return self.local.whole_master(name)

    def rest(self) -> None:
        """End the processes, where there are others, for good: no update follows. Rank 0 keeps the whole weights in
        float32 for `export`, in the memory of its host. Twice is allowed."""
        if self._fleet is not None and self._lost is None:
            named = self.local.whole.module.named_parameters()
            trained = [name for name, parameter in named if parameter.requires_grad]
            with suppress(LostStateError):  # `export` raises it
                self._masters = {name: self._whole_master(name).cpu() for name in trained}
                self._lost = LostStateError("the ranks have ended with the training", _ADVICE)
        self.close()

    def close(self) -> None:
        """End the processes. Twice is allowed."""
        leave()
        if self._fleet is not None:
            self._fleet.close()

    @contextmanager
    def _all(self, method: str, *arguments: tuple[Any, ...]) -> Iterator[list[Any]]:
        """Within: rank 0's part of a call that all ranks make; after it the yielded list has the others' values.

        Raises LostStateError: a rank was lost, with its shard; the others are ended.
        """
        if self._lost is not None:
            raise LostStateError(self._lost.cause, _ADVICE)
        values: list[Any] = []
        try:
            calls = [
                self._call(member, method, *given) for member, given in zip(self._members, arguments, strict=False)
            ]
            with computing_threads(self._threads):
                yield values
            values += [self._value(call) for call in calls]
        except OncurveError as error:
            self._end(str(error))
            raise
        except RuntimeError as error:
            raise self._end(self._first_cause() or str(error).partition("\n")[0]) from error
        except BaseException:
            self._end("the work of all ranks was abandoned")
            raise

    def _call(self, member: int, method: str, *arguments: Any) -> int:
        assert self._fleet is not None
        return self._fleet.call(member, method, *arguments)

    def _value(self, call: int) -> Any:
        began = time.monotonic()
        while call not in self._answers:
            if time.monotonic() > began + self._wait:
                raise RuntimeError(f"a rank has not answered within {self._wait:g} seconds (cluster.wait_seconds)")
            if cause := self._hear():
                raise RuntimeError(cause)
        self._waited += time.monotonic() - began
        answer = self._answers.pop(call)
        if isinstance(answer, Failed):
            raise RuntimeError(answer.message)
        return answer.value

    def _hear(self) -> str:
        """Note answers for a moment; the cause of the first loss among them, if there is one."""
        assert self._fleet is not None
        causes = []
        for event in self._fleet.wait(_TURN_SECONDS):
            if not isinstance(event, ProcessEnded):
                self._answers[event.number] = event
                if isinstance(event, Failed) and not event.lost:
                    causes.append(self._named(event.process, event.message))
            elif event.process in self._members:
                causes.append(self._named(event.process, event.cause))
        return causes[0] if causes else ""

    def _named(self, process: int, cause: str) -> str:
        """A cause with the rank that it is of."""
        return f"rank {1 + self._members.index(process)}: {cause}"

    def _first_cause(self) -> str:
        """Why the connections of the ranks have broken: what the fleet says of it within a few seconds."""
        until = time.monotonic() + _CAUSE_SECONDS
        while self._fleet is not None and time.monotonic() < until:
            if cause := self._hear():
                return cause
        return ""

    def _end(self, cause: str) -> LostStateError:
        """All ranks end: no update can be made without the shard that is lost."""
        self._lost = LostStateError(f"a rank was lost, and its shard of the model with it: {cause}", _ADVICE)
        leave()
        if self._fleet is not None:
            self._fleet.close()
        return self._lost
