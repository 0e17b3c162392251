"""The connections of the ranks of a divided model: how they are made and closed, and single numbers sent over them."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import torch
from torch import distributed

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
