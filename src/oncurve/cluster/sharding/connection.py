"""The connections of the ranks of a divided model: how they are made and closed, and what is sent over them.

On a CPU parts of parameters and gradients are sent directly into the place where they are needed:

    gather          each rank sends its part to every other one, into that one's whole
    reduce          each rank sends every other one that one's part of its gradient; parts are added as they arrive

gloo's own all-gather and reduce-scatter copy the whole first, and gloo's reduce-scatter sums the whole on every rank:
with a large vocabulary that copy is a good part of a rank's memory, and it is twice the bytes.

A part is added to in the order of the ranks after its owner, so the same number of ranks always gives the same bits.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import torch
from torch import Tensor, distributed
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from oncurve.parallel import Meeting
from oncurve.processes import environment_of
from oncurve.processes.fleets import CPU

library: Any = distributed

_JOIN_SECONDS = 60.0

_stores: list[Any] = []
"""The store of this process's connection. NCCL asks it later, and torch alone keeps no object of Python."""


def join(rank: int, size: int, meeting: Meeting | None, seconds: float, device: torch.device = CPU) -> None:
    """Connect this process with the other ranks of `meeting`; every wait has this limit. None: it is alone.

    Tensors of processors go by gloo and those of a GPU, where `device` is one, by NCCL. gloo uses the network device
    alone that has the meeting's address, for processes of one machine the loopback device.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # else DeviceMesh would choose this process's GPU by its rank
        # A wait for NCCL that fails raises where it waits. torch's own watchdog, which would end the process, is off.
        os.environ |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
        backend = "cpu:gloo,cuda:nccl"
    name = _device("127.0.0.1" if meeting is None else meeting.address())
    with environment_of({"GLOO_SOCKET_IFNAME": name}):
        store = library.HashStore() if meeting is None else meeting.store(size, _JOIN_SECONDS)
        limit = timedelta(seconds=_JOIN_SECONDS)
        library.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        _stores[:] = [store]
        # public, and with the other name deprecated, from torch 2.14 on
        set_timeout = vars(library).get("set_timeout", library.distributed_c10d._set_pg_timeout)
        set_timeout(timedelta(seconds=seconds))


def _device(address: str) -> str:
    """Return the name of this machine's network device that has an address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return str(name)
    raise RuntimeError(f"no network device of this machine has the address {address}")


def leave() -> None:
    """Close the connections at once: ranks that wait for this one see an error. Twice is allowed."""
    if library.is_initialized():
        for device in library.group.WORLD._device_types:
            with suppress(Exception):
                library.group.WORLD._get_backend(device).abort()
        with suppress(Exception):
            library.destroy_process_group()


def gathered(number: float) -> list[float]:
    """Return the number of each rank, in the order of ranks."""
    found = [torch.zeros(1, dtype=torch.float64) for _ in range(library.get_world_size())]
    library.all_gather(found, torch.tensor([number], dtype=torch.float64))
    return [float(one) for one in found]


def waited(works: Sequence[Any]) -> None:
    """Wait for what was sent and received. Raises RuntimeError: a rank is lost, or the limit of `join` has passed."""
    limit = library.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    for work in works:
        work.wait(limit)


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
        received = [library.irecv(parts[rank], rank, group) for rank in others]
        waited(received + [library.isend(input_tensor, rank, group) for rank in others])


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
