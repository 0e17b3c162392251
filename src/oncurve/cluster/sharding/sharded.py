"""A learner whose parameters, gradients and optimizer state are divided among several processes by FSDP2.

    rank 0      this process: its shard, and a whole copy in the compute dtype, which the engine samples from
    rank r      a process of a fleet: its shard alone

A rank that is lost takes its shard with it, so an update cannot be done again from what is left. All ranks then end,
and the first cause is raised as a LostStateError: the run goes back to its last checkpoint, with a new learner.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ConfigError, LostStateError, OncurveError, TrainingError
from oncurve.batching import select_rows, shards
from oncurve.cluster.ranks import GradientShards, RankedLearner, joined
from oncurve.cluster.sharding.connection import join, leave
from oncurve.cluster.sharding.shard_learner import RankRows, ShardLearner
from oncurve.durable import LazyTensors, StorageError, temporary_name
from oncurve.learner import UpdateResult, widened
from oncurve.machine.threads import computing_threads, return_freed_memory, sum_exactly_on_gpus
from oncurve.models import LocalWeights, save
from oncurve.parallel import LostRankError, Meeting
from oncurve.processes.fleets import CPU, Fleet
from oncurve.types import TrainBatch


class ShardRank:
    """The object that `ShardedLearner` calls in each process, on all ranks at once.

    After an error a rank leaves the others.
    """

    def __init__(self, make: Callable[..., Any], threads: int, wait_seconds: float, device: torch.device = CPU) -> None:
        """`device`: the one that all ranks compute on, as each calls its own."""
        self._make, self._threads, self._wait, self._device = make, threads, wait_seconds, device

    def begin(self) -> None:
        """Called once in the rank's own process."""
        return_freed_memory()
        sum_exactly_on_gpus()
        torch.set_num_threads(self._threads)

    def join(self, rank: int, size: int, meeting: Meeting) -> None:
        """Connect with the other ranks and cut out this rank's shard. Raises what `ShardLearner` does, and like `do`
        LostRankError: another rank has left."""
        join(rank, size, meeting, self._wait, self._device)
        self._learner: ShardLearner = _leaving(self._make, make=ShardLearner, tokenizer=None)

    def do(self, method: str, *arguments: Any) -> Any:
        """Return what a method of this rank's learner returns; why the disk refused a file, which changes nothing."""
        return _leaving(asked, self._learner, method, arguments)


def asked(learner: ShardLearner, method: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a method returns, or the error of a disk that refused a file."""
    try:
        return getattr(learner, method)(*arguments)
    except StorageError as error:
        return error


def _leaving(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return work(*arguments, **named)
    except BaseException as error:
        leave()  # the others see it at once
        if isinstance(error, RuntimeError) and "Connection" in str(error):
            raise LostRankError(str(error)) from error
        raise


_ADVICE = (
    "The run goes on from its last checkpoint with `oncurve resume` and its folder, and with fewer ranks where "
    "cluster.learner_ranks is lower"
)
_CAUSE_SECONDS = 5.0
_TURN_SECONDS = 0.5


class ShardedLearner(RankedLearner):
    """A `Learner` of one policy in shards, on this process and those of `fleet` (None: this one alone).

    make          builds the learner of a rank, given its class as `make`
    threads       of each rank while it computes
    wait_seconds  the longest wait for another rank
    device        the one that all ranks compute on, as each calls its own
    """

    local: ShardLearner

    def __init__(
        self,
        make: Callable[..., Any],
        fleet: Fleet | None,
        ranks: int,
        threads: int,
        wait_seconds: float,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(fleet, wait_seconds)
        self._ranks, self._threads = ranks, threads
        self._lost: LostStateError | None = None
        self._masters: dict[str, torch.Tensor] | None = None
        return_freed_memory()
        try:
            meeting = self._started(fleet).meeting() if fleet is not None else None
            with self._whole():
                calls = [self.call(each, "join", rank, ranks, meeting) for rank, each in enumerate(self.members, 1)]
                join(0, ranks, meeting, wait_seconds, device)
                self.local = make(make=ShardLearner)
                self._answers_to(calls)
        except LostRankError as error:
            self.close()
            raise TrainingError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _started(self, fleet: Fleet) -> Fleet:
        """Return the fleet, as soon as there is a process for each other rank; a place may need a second attempt.

        Raises TrainingError: they do not start within the limit.
        """
        until = time.monotonic() + self.wait_seconds
        while len(members := fleet.settled(max(0.0, until - time.monotonic()))) < self._ranks - 1:
            if time.monotonic() > until:
                cause = "".join(f": {each}" for each in list(self.ended.values())[:1])
                raise TrainingError(f"only {1 + len(members)} of {self._ranks} ranks have started{cause}")
            self.hear(_TURN_SECONDS)
        self.members = members
        return fleet

    def weights(self) -> LocalWeights:
        """Return the policy's weights as they are now: rank 0's whole copy in the compute dtype."""
        return LocalWeights(self.local.whole, self.version)

    def update(self, minibatch: TrainBatch) -> UpdateResult:
        """Return one optimizer update of all ranks, which have the rows with a gradient in equal parts."""
        rows = self.local.rows_of(minibatch)
        cut = GradientShards(self.local, [None] * self._ranks if rows is None else shards(rows, self._ranks))
        found = self._all("update_part", parts=self._parts(minibatch, cut.pieces))
        result: UpdateResult = found[0][0]
        if not result.skipped:
            accumulated = dict(enumerate(own for _, own in found))
            result.metrics.merge(cut.joined(minibatch, accumulated).metrics)
        if self.members:
            result.metrics.add("cluster/ranks", float(self._ranks))
            result.metrics.add("cluster/wait_seconds", self.waited)
        self.waited = 0.0
        return result

    def _parts(self, batch: TrainBatch, runs: Sequence[TrainBatch | None]) -> list[RankRows]:
        """Return the runs of a batch's rows, one per rank; an empty one gets a row at weight 0."""
        shortest = select_rows(batch, batch.lengths.argmin()[None])
        return [RankRows(shortest if run is None else run, run is not None) for run in runs]

    def score(self, batch: TrainBatch, want: frozenset[str]) -> TrainBatch:
        """Return the batch with what `want` names, without a gradient, computed by all ranks."""
        if not self.local.scores(want):
            return batch
        parts = self._parts(batch, shards(batch, self._ranks))
        found = self._all("score_part", want, parts=parts)
        return batch.having(**joined(batch, [each for each, part in zip(found, parts, strict=True) if part.counts]))

    def move_reference(self, alpha: float) -> None:
        """π_ref ← α π_θ + (1 - α) π_ref, by every rank for its rows."""
        self._all("move_reference", alpha)

    def check_folder(self, folder: Path) -> None:
        """Raises ConfigError: another rank does not see `folder`, into which all of them write checkpoints."""
        probe = temporary_name(folder.absolute() / "probe")
        probe.touch()
        try:
            seen = self._all("sees", probe)
        finally:
            probe.unlink()
        blind = next((rank for rank, found in enumerate(seen) if rank and not found), None)  # rank 0 has made it
        if blind is not None:
            raise ConfigError(
                f'{folder}: with cluster.sharding = "fsdp" each rank writes its part of a checkpoint there, and rank '
                f"{blind} on another machine does not see this folder; choose an --out that all "
                "machines share under one name"
            )

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Have each rank write its own file into `folder`; return the record. Any number of ranks can load it.

        Raises StorageError, once no rank writes any more: the disk refused one of the files, and no rank is lost by it.
        """
        records = self._all("save", folder.absolute())
        for refused in records:
            if isinstance(refused, StorageError):
                raise refused.renamed(str(folder.absolute()), str(folder))
        found: Mapping[str, Any] = records[0]
        return found

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Restore what `save` wrote, bit for bit, on any number of ranks. Raises CheckpointError for another
        model's.
        """
        self._all("load", folder.absolute(), meta)

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
        found: torch.Tensor = self._masters[name] if self._masters is not None else self._all("whole_master", name)[0]
        return found

    def rest(self) -> None:
        """End the processes, where there are others, for good: no update follows. Rank 0 keeps the whole weights in
        float32 for `export`, in the memory of its host. Twice is allowed."""
        if self.fleet is not None and self._lost is None:
            named = self.local.whole.module.named_parameters()
            trained = [name for name, parameter in named if parameter.requires_grad]
            with suppress(LostStateError):  # `export` raises it
                self._masters = {name: self._whole_master(name).cpu() for name in trained}
                self._lost = LostStateError("the ranks have ended with the training", _ADVICE)
        self.close()

    def close(self) -> None:
        """End the processes. Twice is allowed."""
        leave()
        if self.fleet is not None:
            self.fleet.close()

    def _all(self, method: str, *arguments: Any, parts: Sequence[RankRows] | None = None) -> list[Any]:
        """Return what a method of all ranks' learners returns, rank 0's first; each rank is given its one of `parts`.

        Raises LostStateError: a rank was lost, with its shard; the others are ended.
        """
        given = [arguments if parts is None else (parts[rank], *arguments) for rank in range(self._ranks)]
        with self._whole():
            calls = [self.call(each, "do", method, *given[rank]) for rank, each in enumerate(self.members, 1)]
            with computing_threads(self._threads):
                own = asked(self.local, method, given[0])
            return [own, *self._answers_to(calls)]

    def _answers_to(self, calls: Sequence[int]) -> list[Any]:
        return [self.answer(member, call) for member, call in zip(self.members, calls, strict=True)]

    def is_lost(self, member: int) -> bool:
        """Return whether any rank was lost: the others wait for it."""
        return not self.ended.keys().isdisjoint(self.members)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Within: an error ends all ranks, and where one of them was lost, a LostStateError says its first cause."""
        if self._lost is not None:
            raise LostStateError(self._lost.cause, _ADVICE)
        try:
            yield
        except OncurveError as error:
            self._end(str(error))
            raise
        except (RuntimeError, LostRankError) as error:
            raise self._end(self._first_cause() or str(error).partition("\n")[0]) from error
        except BaseException:
            self._end("the work of all ranks was abandoned")
            raise

    def _first_cause(self) -> str:
        """Return why the connections of the ranks have broken: what the fleet says of it within a few seconds."""
        until = time.monotonic() + _CAUSE_SECONDS
        while self.fleet is not None and time.monotonic() < until:
            for process, cause in self.ended.items():
                if process in self.members:
                    return f"rank {1 + self.members.index(process)}: {cause}"
            self.hear(_TURN_SECONDS)
        return ""

    def _end(self, cause: str) -> LostStateError:
        """End all ranks: no update can be made without the shard that is lost."""
        self._lost = LostStateError(f"a rank was lost, and its shard of the model with it: {cause}", _ADVICE)
        self.close()
        return self._lost
