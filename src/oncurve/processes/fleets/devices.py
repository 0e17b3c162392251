"""Which GPU each process of a cluster has.

    gpus = gpus_of(device)                      those of this machine; None where the model is not on one
    placed(gpus, ranks=2, workers=4, each=1)    CUDA_VISIBLE_DEVICES of each other process

A process gets its GPUs by CUDA_VISIBLE_DEVICES, which is set before it touches CUDA, and not by an index: it sees no
GPU of another process, so neither a library's thread nor a server that it starts can put something there.
"""

import math
import os
from dataclasses import dataclass

import torch

from oncurve.base.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gpus:
    """The GPUs that this process sees, the one that it computes on first.

    entries   as CUDA_VISIBLE_DEVICES has them
    names     their models: the bits of a product depend on it
    device    what a process calls the first one that it sees
    """

    entries: tuple[str, ...]
    names: tuple[str, ...]
    device: str = "cuda"


@dataclass(frozen=True)
class Placement:
    """CUDA_VISIBLE_DEVICES of ranks 1, 2, ... and of the workers."""

    ranks: tuple[str, ...]
    workers: tuple[str, ...]


def gpus_of(device: torch.device) -> Gpus | None:
    """Return the GPUs of this machine, where a model on `device` is on one of them."""
    if device.type != "cuda":
        return None
    count = torch.cuda.device_count()
    own = torch.cuda.current_device() if device.index is None else device.index
    order = [own, *(index for index in range(count) if index != own)]
    entries = entries_of(os.environ.get(VISIBLE), count)
    return Gpus(tuple(entries[i] for i in order), tuple(torch.cuda.get_device_name(i) for i in order))


def entries_of(visible: str | None, count: int) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES calls the `count` GPUs that a process sees where it is `visible`.

    Example: `entries_of("4,6", 2)` is `["4", "6"]`, and `entries_of(None, 2)` is `["0", "1"]`.
    """
    if visible is None:
        return [str(index) for index in range(count)]
    return [entry.strip() for entry in visible.split(",")][:count]


def placed(gpus: Gpus, ranks: int, workers: int, each: int) -> Placement:
    """Return a GPU for every rank, rank 0 included, and then `each` for every worker; 0: all workers share rank 0's.

    Raises ConfigError: there are fewer, or they are of several models, whose bits differ.
    """
    need = ranks + workers * each
    have = len(gpus.entries)
    if need > have:
        share = "; with cluster.rollout_gpus=0 the workers share the GPU of rank 0" if workers and each else ""
        raise ConfigError(
            f"cluster.learner_ranks, cluster.rollout_workers: {_count(ranks, 'rank')} with a GPU each and "
            f"{_count(workers, 'worker')} with {each} need {need}, and this machine has {have}; lower "
            f"one of them{share}"
        )
    used = set(gpus.names[:need])
    if len(used) > 1:
        raise ConfigError(
            f"cluster.kind: the run would use {' and '.join(sorted(used))}, whose results differ in their last bits; "
            f"set {VISIBLE} to GPUs of one model"
        )
    own, others = gpus.entries[0], gpus.entries[1:]
    rest = others[ranks - 1 :]
    cards = tuple(",".join(rest[i * each : (i + 1) * each]) if each else own for i in range(workers))
    return Placement(others[: ranks - 1], cards)


def memory_share(free: float, total: float, needed: float, servers: int) -> float:
    """Return the share of a card's memory that each of the `servers` on it takes, next to a learner.

    free    bytes at the start: a server that is to take more does not start; a tenth of it is left for its context
    needed  bytes of the card that training takes; the servers have a quarter of the card whatever that is, because the
            learner halves its micro-batches where they do not fit
    """
    return math.floor(100 * min(0.9 * free, max(total - needed, total / 4)) / total / servers) / 100


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
