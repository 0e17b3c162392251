"""One rank that has a shard of the policy, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oncurve.cluster.sharding.connection import join, leave
from oncurve.cluster.sharding.shard_learner import ShardLearner
from oncurve.durable import StorageError
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
