"""One rank that has a shard of the policy, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oncurve.cluster.sharding.connection import join, leave
from oncurve.cluster.sharding.shard_learner import RankRows, ShardLearner
from oncurve.durable import StorageError
from oncurve.learner import Accumulated
from oncurve.machine.threads import return_freed_memory, sum_exactly_on_gpus
from oncurve.parallel import LostRankError, Meeting
from oncurve.processes.fleets import CPU


class ShardRank:
    """The object that `ShardedLearner` calls in each process, on all ranks at once.

    After an error a rank leaves the others.
    """

    def __init__(self, make: Callable[..., Any], threads: int, wait_seconds: float, device: torch.device = CPU) -> None:
        """`device`: the one that all ranks compute on, as each calls its own."""
        self._make, self._threads, self._wait, self._device = make, threads, wait_seconds, device
        self._learner: ShardLearner | None = None

    def begin(self) -> None:
        """Called once in the rank's own process."""
        return_freed_memory()
        sum_exactly_on_gpus()
        torch.set_num_threads(self._threads)

    def join(self, rank: int, size: int, meeting: Meeting) -> None:
        """Connect with the other ranks and cut out this rank's shard. Raises what `ShardLearner` does, and like all
        that follows LostRankError: another rank has left."""
        join(rank, size, meeting, self._wait, self._device)
        self._learner = self._do(lambda: self._make(make=ShardLearner, tokenizer=None))

    def update(self, part: RankRows) -> Accumulated:
        """Return one update; loss and statistics of this rank's rows."""
        found: Accumulated = self._do(self._here().update_part, part)[1]
        return found

    def score(self, part: RankRows, want: frozenset[str]) -> dict[str, Tensor]:
        """Return the scores of this rank's rows."""
        found: dict[str, Tensor] = self._do(self._here().score_part, part, want)
        return found

    def move_reference(self, alpha: float) -> None:
        """Move this rank's rows of the reference towards the policy's."""
        self._do(self._here().move_reference, alpha)

    def whole_master(self, name: str) -> None:
        """Give this rank's rows of a parameter to rank 0."""
        self._do(self._here().whole_master, name)

    def sees(self, file: Path) -> bool:
        """Return whether this machine has a file."""
        return file.exists()

    def save(self, folder: Path) -> StorageError | None:
        """Write this rank's file of a checkpoint; why the disk refused it, which changes nothing in this rank."""
        try:
            self._here().save(folder)
        except StorageError as error:
            return error
        return None

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Read this rank's rows of a checkpoint."""
        self._do(self._here().load, folder, meta)

    def _here(self) -> ShardLearner:
        assert self._learner is not None
        return self._learner

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except BaseException as error:
            leave()  # the others see it at once
            if isinstance(error, RuntimeError) and "Connection" in str(error):
                raise LostRankError(str(error)) from error
            raise
