"""Processes that share an update: a world of ranks, and the sums and copies between them.

    world = World()                                    this process alone: no socket, nothing is imported
    world = World.join(rank, size, meeting, seconds)   `size` processes that find each other at `meeting`, over gloo

    world.tree_sum(leaf, shards)      the sum of all shards in a fixed tree, whichever rank computes which shard
    world.broadcast(tensors)          rank 0's tensors on every rank

Floating-point addition is not associative, so the order of the additions is part of the result. It is a binary tree
over the *shards*, ((g₀ + g₁) + (g₂ + g₃)) + ..., and a rank owns a subtree of it. The number of ranks, which may change
from update to update, therefore cannot be seen in the sum.

Every wait has a limit. A rank that is lost raises `LostRankError` on those that wait for it, at once where its process
has ended, and at the limit where it does not answer.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

_ADDRESS_SECONDS, _POLL_SECONDS = 10.0, 0.01
_CPU = torch.device("cpu")

BUCKET_BYTES = 64 * 2**20
"""What is sent at once: large enough that the number of messages costs nothing, small enough as scratch space."""

Leaf = Callable[[int], Sequence[Tensor]]
"""The tensors of one shard, by its index. They are valid until the next call, and are added to in place."""


class LostRankError(Exception):
    """Another rank has ended, does not answer within the limit, or has left this world."""


class Meeting(Protocol):
    """The place where the ranks of one world find each other: a value that each of them gets. It is used once."""

    def store(self, size: int, seconds: float) -> Any:
        """torch.distributed's store of the `size` ranks. Its waits end after so many `seconds`."""

    def address(self) -> str:
        """Return the address at which the other ranks can connect to this process."""


@dataclass(frozen=True)
class FileMeeting:
    """A meeting of processes of one machine, by the files of a folder at `path`, which must not exist before.

    A file is there whole or not at all. torch's own store is one file, and a rank that reads it cannot be stopped: it
    waits for ever for the rest of what a killed rank has begun to write, and after garbage.
    """

    path: Path

    def store(self, size: int, seconds: float) -> Any:
        """Return a store in the folder."""
        from torch import distributed  # here: a process that is alone does without it

        library: Any = distributed
        folder = self.path

        class Store(library.Store):  # type: ignore[misc]
            def set(self, key: str, value: Any) -> None:
                new = folder / f"new-{secrets.token_hex(8)}"
                new.write_bytes(value)
                new.rename(folder / key.encode().hex())

            def get(self, key: str) -> bytes:
                self.wait([key])
                return (folder / key.encode().hex()).read_bytes()

            def check(self, keys: list[str]) -> bool:
                return all((folder / key.encode().hex()).exists() for key in keys)

            def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
                until = time.monotonic() + seconds
                while not self.check(keys):
                    if time.monotonic() > until:
                        raise TimeoutError(f"nothing came within {seconds:g} seconds")
                    time.sleep(_POLL_SECONDS)

        folder.mkdir(mode=0o700, exist_ok=True)
        return Store()

    def address(self) -> str:
        """Return the loopback device's: no other machine can connect."""
        return "127.0.0.1"


@dataclass(frozen=True)
class NetworkMeeting:
    """A meeting of processes of several machines, by a server (`serve_meetings`).

    host, port   the server's
    number       of the meeting: each of a server has another
    """

    host: str
    port: int
    number: int

    def store(self, size: int, seconds: float) -> Any:
        """Return a connection to the server."""
        from torch import distributed

        library: Any = distributed
        limit = timedelta(seconds=seconds)
        store = library.TCPStore(self.host, self.port, is_master=False, timeout=limit, wait_for_workers=False)
        return library.PrefixStore(f"meeting {self.number}", store)

    def address(self) -> str:
        """Return the address from which this machine reaches the server."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.settimeout(_ADDRESS_SECONDS)
            end.connect((self.host, self.port))  # a datagram socket sends nothing by this
            return str(end.getsockname()[0])


def serve_meetings(host: str) -> Any:
    """Return a server for `NetworkMeeting`s at the address `host` of this machine and at no other; `.port` is its port.

    It ends when it is garbage-collected. Raises OSError: `host` is no address of this machine.
    """
    from torch import distributed

    library: Any = distributed
    end = socket.create_server((host, 0))
    port = end.getsockname()[1]
    return library.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=end.detach())


class World:
    """The ranks that share an update. Rank 0 has the result of a sum, and what the others copy.

    rank, size   which of how many processes this one is
    waited       seconds for which this process has waited for others
    """

    def __init__(self, rank: int = 0, size: int = 1, seconds: float = 0.0) -> None:
        """`seconds`: the limit of a wait. `join` connects the ranks."""
        self.rank, self.size = rank, size
        self.waited = 0.0
        self._group: Any = None  # the processes as torch.distributed has them
        self._limit = timedelta(seconds=seconds)

    @classmethod
    def join(cls, rank: int, size: int, meeting: Meeting | None, seconds: float, start_seconds: float = 30.0) -> World:
        """Return the world in which this process is `rank`, as soon as all others have joined it.

        meeting        the same for the ranks of this world, and for no others; None: `size` is 1
        seconds        the limit of every later wait
        start_seconds  the limit of this one

        Raises LostRankError: not all have joined in time.
        """
        if size == 1 or meeting is None:
            return cls()
        world = cls(rank, size, seconds)
        with world._lost(f"rank {rank} of {size} could not join the others"):
            world._group = _gloo(rank, size, meeting, start_seconds)
            world._wait(world._here().allreduce([torch.zeros(1)]))  # a connection to each, before there is work to lose
        return world

    def leave(self) -> None:
        """Close the connections. Ranks that wait for this one raise LostRankError. Twice is allowed."""
        if self._group is not None:
            self._group.abort()  # others may hold it, such as the traceback of an error
        self._group = None

    def tree_sum(self, leaf: Leaf, shards: int) -> None:
        """Σ over shards of their tensors, in a fixed tree, left in the tensors of rank 0's last leaf.

            sum(a, b) = sum(a, m) + sum(m, b),   m = (a + b) / 2,   sum(i, i + 1) = leaf(i)

        A rank calls `leaf` for its own shards (`shards_of`), in order. It keeps at most log₂(shards) copies of the
        tensors, and a bucket for what other ranks send. Shapes and dtypes must be the same for all shards.

        Raises ValueError: `shards` is no power of two. LostRankError: then the tensors hold a part of the sum.
        """
        check_shards(shards)
        self._sum(leaf, 0, shards, 0, self.size)

    def _sum(self, leaf: Leaf, low: int, high: int, first: int, ranks: int) -> Sequence[Tensor]:
        """Return the sum of shards `low` to `high` by `ranks` ranks from `first` on, of which this is one; `first` has
        it.
        """
        if ranks == 1 or high - low == 1:  # of more ranks than shards the first computes
            return _local_sum(leaf, low, high) if self.rank == first else ()
        middle, right = (low + high) // 2, first + (ranks + 1) // 2
        if self.rank < right:
            total = self._sum(leaf, low, middle, first, right - first)
            if self.rank == first:
                self._receive(total, right, Tensor.add_)
            return total
        total = self._sum(leaf, middle, high, right, first + ranks - right)
        if self.rank == right:
            self.send(total, first)
        return total

    def send(self, tensors: Sequence[Tensor], to: int) -> None:
        """Send `tensors` to a rank that receives as many of the same shapes. Raises LostRankError."""
        for bucket in _buckets(tensors):
            with self._lost(f"rank {to} did not take what was sent"):
                self._wait(self._here().send([_as_bytes(self._message(torch.cat(bucket)))], to, 0))

    def receive(self, tensors: Sequence[Tensor], source: int) -> None:
        """Fill `tensors` with what rank `source` sends. Raises LostRankError: then some may be filled."""
        self._receive(tensors, source, Tensor.copy_)

    def _receive(self, tensors: Sequence[Tensor], source: int, put: Callable[[Tensor, Tensor], Tensor]) -> None:
        for bucket in _buckets(tensors):
            arrived = self._room(bucket)
            with self._lost(f"rank {source} sent nothing"):
                self._wait(self._here().recv([_as_bytes(arrived)], source, 0))
            _spread(arrived, bucket, put)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Fill the tensors of all ranks with those of rank 0. Raises LostRankError: then some may be filled."""
        if self.size == 1:
            return
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        for bucket in _buckets(tensors):
            joined = self._message(torch.cat(bucket)) if self.rank == 0 else self._room(bucket)
            with self._lost("not all ranks have rank 0's tensors"):
                self._wait(self._here().broadcast([_as_bytes(joined)], options))
            if self.rank:
                _spread(joined, bucket, Tensor.copy_)

    def _message(self, joined: Tensor) -> Tensor:
        """Return a bucket where gloo takes it from: pinned memory, if it is on a GPU."""
        if joined.device == _CPU:
            return joined
        return torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True).copy_(joined)

    def _room(self, bucket: Sequence[Tensor]) -> Tensor:
        """Return memory for a bucket where gloo puts it."""
        count = sum(map(Tensor.numel, bucket))
        return torch.empty(count, dtype=bucket[0].dtype, pin_memory=bucket[0].device != _CPU)

    def _wait(self, work: Any) -> None:
        began = time.perf_counter()
        try:
            work.wait(self._limit)
        finally:
            self.waited += time.perf_counter() - began

    @contextmanager
    def _lost(self, what: str) -> Iterator[None]:
        """Within: an error of the connections becomes a LostRankError that begins with `what`.

        The others see it at once, because this rank leaves: one that waits for it need not wait for the rank that it
        has lost.
        """
        try:
            yield
        except (RuntimeError, OSError, MemoryError) as error:  # torch's DistError; gloo, for an address that is none
            self.leave()
            reason = str(error).rpartition("] ")[2].partition(". ")[0] if "Connection" in str(error) else str(error)
            raise LostRankError(f"{what}: {reason.partition(chr(10))[0]}") from None

    def _here(self) -> Any:
        if self._group is None:
            raise LostRankError("this process has left the world")
        return self._group


def _gloo(rank: int, size: int, meeting: Meeting, seconds: float) -> Any:
    """Return the processes at `meeting`, connected by sockets."""
    from torch import distributed  # here: a process that is alone does without it

    library: Any = distributed
    gloo = library.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=seconds)
    options._devices = [gloo.create_device(hostname=meeting.address())]
    return gloo(meeting.store(size, seconds), rank, size, options)


ALONE = World()
"""The world of a process that shares nothing."""


def check_shards(shards: int) -> None:
    """Raises ValueError where `shards` is no power of two."""
    if shards < 1 or shards & (shards - 1):
        raise ValueError(f"the number of shards must be a power of two, for a tree of pairs; it is {shards}")


def shards_of(rank: int, ranks: int, shards: int) -> range:
    """Return the shards that a rank computes: a subtree of the tree of `tree_sum`, or none of fewer shards than ranks.

    Example: of 8 shards and 3 ranks, rank 0 has 0 and 1, rank 1 has 2 and 3, rank 2 has 4 to 7.
    """
    check_shards(shards)
    low, high, first = 0, shards, 0
    while ranks > 1 and high - low > 1:
        middle, right = (low + high) // 2, first + (ranks + 1) // 2
        if rank < right:
            high, ranks = middle, right - first
        else:
            low, ranks, first = middle, first + ranks - right, right
    return range(low, high if rank == first or ranks == 1 else low)


def _local_sum(leaf: Leaf, low: int, high: int) -> Sequence[Tensor]:
    if high - low == 1:
        return leaf(low)
    middle = (low + high) // 2
    left = [tensor.clone() for tensor in _local_sum(leaf, low, middle)]
    total = _local_sum(leaf, middle, high)
    for tensor in reversed(total):
        tensor.add_(left.pop())  # a + b = b + a, bit for bit; the copy is freed at once
    return total


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Return flat views of all elements in order, in lists of one dtype and at most `BUCKET_BYTES`."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        for piece in torch.split(tensor.detach().view(-1), BUCKET_BYTES // tensor.element_size()):
            if bucket and (size + piece.nbytes > BUCKET_BYTES or piece.dtype != bucket[0].dtype):
                yield bucket
                bucket, size = [], 0
            if piece.numel():
                bucket.append(piece)
                size += piece.nbytes
    if bucket:
        yield bucket


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return bytes of every dtype are taken."""
    return tensor.view(torch.uint8)


def _spread(joined: Tensor, bucket: Sequence[Tensor], put: Callable[[Tensor, Tensor], Tensor]) -> None:
    joined = joined.to(bucket[0].device)
    for piece, part in zip(bucket, torch.split(joined, [piece.numel() for piece in bucket]), strict=True):
        put(piece, part)
