"""Exchanges between the ranks of a divided model on a CPU, directly into the place where it is needed.

    gather          each rank sends its part to every other one, into that one's whole
    reduce          each rank sends every other one that one's part of its gradient; parts are added as they arrive

gloo's own all-gather and reduce-scatter copy the whole first, and gloo's reduce-scatter sums the whole on every rank:
with a large vocabulary that copy is a good part of a rank's memory, and it is twice the bytes.

A part is added to in the order of the ranks after its owner, so the same number of ranks always gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from oncurve.cluster.sharding.connection import library


def waited(works: Sequence[Any]) -> None:
    """Wait for what was sent and received. Raises RuntimeError: a rank is lost, or the limit of `join` has passed."""
    limit = _limit()
    for work in works:
        work.wait(limit)


def _limit() -> timedelta:
    """Return the longest wait, as the processes agreed when they joined."""
    found: timedelta = library.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    return found


class _Room:
    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return room for the whole, or for a part."""
        return torch.empty(*size, dtype=dtype, device=device)


class DirectGather(_Room, AllGather):
    """FSDP2's all-gather."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Fill `output_tensor (ranks · n)` with the `input_tensor (n)` of all ranks, which may be a part of it."""
        mine, parts = group.rank(), output_tensor.chunk(group.size())
        if input_tensor.data_ptr() != parts[mine].data_ptr():
            parts[mine].copy_(input_tensor)
        others = [rank for rank in range(group.size()) if rank != mine]
        waited(
            [library.irecv(parts[rank], rank, group) for rank in others]
            + [library.isend(input_tensor, rank, group) for rank in others]
        )


class DirectReduce(_Room, ReduceScatter):
    """FSDP2's reduce-scatter, of sums."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """`output_tensor (n)`: the sum over all ranks of this rank's part of their `input_tensor (ranks · n)`."""
        assert op == library.ReduceOp.SUM
        mine, size, parts = group.rank(), group.size(), input_tensor.chunk(group.size())
        output_tensor.copy_(parts[mine])
        arrived = torch.empty_like(output_tensor)
        for distance in range(1, size):
            source, to = (mine + distance) % size, (mine - distance) % size
            waited([library.irecv(arrived, source, group), library.isend(parts[to], to, group)])
            output_tensor.add_(arrived)
