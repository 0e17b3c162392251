"""The weights that a worker samples from: one whole version, checked by its digest.

    snapshot = Snapshot(model, version=3)           in the process that trains: nothing is copied
    handle = ObjectCarrier().put(fleet, snapshot)        one copy per machine, whatever the number of workers
    handle = DiskCarrier(folder).put(fleet, snapshot)    one copy in a folder, whatever the number of machines
    carrier.bring(fleet, workers, snapshot, handle) has workers take them
    take(model, what)                               in the worker, with what the handle has become
    digest_of(model) == snapshot.digest             then the worker has the whole version

The tensors have the module's own names and bits, not those of a Hugging Face file: an adapter merged into its base
would round differently from the base and the adapter that the learner computes with. Of a model with an adapter only
the adapter is sent, because nothing else changes.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from oncurve.base.errors import ConfigError
from oncurve.durable import read_tensors, write_directory
from oncurve.models import CausalModel, changing_tensors
from oncurve.parallel import BUCKET_BYTES
from oncurve.processes.fleets import Event, Fleet, ProcessEnded

_FILE = "weights.safetensors"
_TURN_SECONDS = 1.0


class Snapshot:
    """The weights of `model` as they are, under a version; valid until they change."""

    def __init__(self, model: CausalModel, version: int) -> None:
        self.model, self.version = model, version

    def is_of(self, other: Snapshot) -> bool:
        """Return whether both are of the same model and version."""
        return self.model is other.model and self.version == other.version

    @cached_property
    def digest(self) -> str:
        """`digest_of` the model."""
        return digest_of(self.model)

    @cached_property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.nbytes for tensor in changing_tensors(self.model).values())

    def buckets(self, nbytes: int = BUCKET_BYTES) -> Iterator[memoryview]:
        """The bytes of all tensors, one after another, in pieces of `nbytes` and a last one that may be shorter.

        A piece is overwritten when the next one is asked for.
        """
        bucket, filled = np.empty(min(nbytes, self.nbytes), dtype=np.uint8), 0
        for tensor in changing_tensors(self.model).values():
            data = _bytes_of(tensor)
            while data.size:
                part = data[: bucket.size - filled]
                bucket[filled : filled + part.size] = part
                data, filled = data[part.size :], filled + part.size
                if filled == bucket.size:
                    yield bucket.data
                    filled = 0
        if filled:
            yield bucket[:filled].data


class Carrier:
    """The way of weights to workers: here each worker copies them itself, and nothing is waited for.

    A handle is kept until the worker has answered, also where another version is sent by then: what it stands for is
    freed with it.

    together   it costs less to bring the weights to all workers that are free when one of them needs them
    ahead      `put` may be called while workers take the version before
    gives_up   `bring` has failed so often that the driver is to decode what is left of the rollout
    """

    together, ahead, gives_up = False, True, False

    def __init__(self) -> None:
        self._asked: dict[int, deque[tuple[int, Any]]] = defaultdict(deque)

    def put(self, fleet: Fleet, snapshot: Snapshot) -> Any:
        """Return what `bring` needs of the weights. That of the version before the last is not used any more.

        Raises OSError or StorageError: there is no room for them.
        """
        raise NotImplementedError

    def bring(self, fleet: Fleet, workers: Sequence[int], snapshot: Snapshot, handle: Any) -> bool:
        """Have `workers`, which are free, take the weights before their next call. False: it is to be tried again,
        because a worker was lost meanwhile, and the others may not have them.
        """
        for worker in workers:
            number = fleet.call(worker, "take", snapshot.version, snapshot.digest, handle)
            self._asked[worker].append((number, handle))
        return True

    def heard(self, event: Event) -> None:
        """Forget the handles that a worker has answered for; all of one that has ended."""
        if isinstance(event, ProcessEnded):
            self._asked.pop(event.process, None)
            return
        asked = self._asked[event.process]
        while asked and asked[0][0] <= event.number:
            asked.popleft()

    def close(self) -> None:
        """Forget the handles: what they stand for is freed with them. Twice is allowed."""
        self._asked.clear()


class ObjectCarrier(Carrier):
    """Buckets that the fleet keeps once per machine (`cluster.weights = "object"`)."""

    def put(self, fleet: Fleet, snapshot: Snapshot) -> Any:
        """Return what the fleet makes of the buckets."""
        return fleet.put(snapshot.buckets())


class DiskCarrier(Carrier):
    """Safetensors with a manifest in a folder that all workers see (`cluster.weights = "disk"`).

    It is below `folder`, or below that of temporary files where `folder` is "", has the two newest versions, and is
    removed by `close`.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._parent = Path(folder) if folder else None
        self._folder: Path | None = None
        self._copies = 0

    @staticmethod
    def check(folder: Path) -> None:
        """Raises ConfigError: `folder` cannot be made, or not be written to."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"cluster.weights_folder: {folder} cannot be written to ({error.strerror}); name a folder that all "
                "machines of the run see and can write to"
            ) from error

    def put(self, fleet: Fleet, snapshot: Snapshot) -> Path:
        """The folder of the version, written whole or not at all after those before the last one are removed."""
        if self._folder is None or not self._folder.is_dir():  # it may have been removed
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix="oncurve-weights-", dir=self._parent)
            self._folder = Path(made) if self._parent is None else self._parent / Path(made).name
        for earlier in sorted(self._folder.iterdir())[:-1]:
            shutil.rmtree(earlier, ignore_errors=True)
        self._copies += 1
        path = self._folder / f"{self._copies:06d}-version-{snapshot.version}"
        write_directory(path, {_FILE: changing_tensors(snapshot.model)})
        return path.absolute()

    def close(self) -> None:
        """Remove the folder."""
        super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None


class Sending:
    """The weights of a snapshot, and the handle of their copy as soon as there is one.

    `begin` copies them in a thread of its own, for which the snapshot must stay as it is; `finish` in this one, or
    waits for that thread. `key` tells the version from all others once there is a copy.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.handle: Any = None
        self.key = ""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Return whether workers can be given the handle."""
        return self.handle is not None

    def begin(self, carrier: Carrier, fleet: Fleet) -> None:
        """Copy the weights while this thread goes on."""
        self._thread = threading.Thread(target=self._copy, args=(carrier, fleet), name="oncurve-weights", daemon=True)
        self._thread.start()

    def finish(self, carrier: Carrier, fleet: Fleet) -> None:
        """Copy the weights, unless that is done. Raises OSError or StorageError: there is no room for them."""
        self.settle()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.handle is None:
            self._put(carrier, fleet)

    def settle(self) -> None:
        """Wait for the thread, if there is one. Twice is allowed."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_TURN_SECONDS)  # it ends as every copy does
        self._thread = None

    def _put(self, carrier: Carrier, fleet: Fleet) -> None:
        self.key = f"{self.snapshot.version} {self.snapshot.digest}"
        self.handle = carrier.put(fleet, self.snapshot)

    def _copy(self, carrier: Carrier, fleet: Fleet) -> None:
        try:
            self._put(carrier, fleet)
        except Exception as error:
            self._error = error


def take(model: CausalModel, what: Sequence[memoryview] | Path) -> None:
    """Write what a carrier has brought into the model's tensors. Then some may be written where this raises
    RuntimeError, because it is not of this model, or StorageError."""
    if isinstance(what, Path):
        _take_file(model, what / _FILE)
    else:
        _take_buckets(model, what)


def _take_file(model: CausalModel, file: Path) -> None:
    targets, found = changing_tensors(model), read_tensors(file)
    if found.keys() != targets.keys() or any(found[name].shape != targets[name].shape for name in targets):
        raise RuntimeError(f"{file} has not the tensors of this model")
    for name, target in targets.items():
        target.copy_(found[name])


def _take_buckets(model: CausalModel, buckets: Sequence[memoryview]) -> None:
    tensors = changing_tensors(model).values()
    need, have = sum(tensor.nbytes for tensor in tensors), sum(len(bucket) for bucket in buckets)
    if need != have:
        raise RuntimeError(f"the weights have {need} bytes, and {have} have come")
    rest = iter(buckets)
    source = np.empty(0, dtype=np.uint8)
    for tensor in tensors:
        whole = target = _bytes_of(tensor)
        while target.size:
            if not source.size:
                source = np.frombuffer(next(rest), dtype=np.uint8)
            count = min(target.size, source.size)
            target[:count] = source[:count]
            target, source = target[count:], source[count:]
        if tensor.device.type != "cpu":
            tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(whole))


def digest_of(model: CausalModel) -> str:
    """The XXH3 (128 bits) of names, types, shapes and bits of the tensors that training changes.

    It finds what went wrong by accident; it is no protection against an attacker.
    """
    found = xxhash.xxh3_128()
    for name, tensor in changing_tensors(model).items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(_bytes_of(tensor).data)
    return found.hexdigest()


def _bytes_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of a tensor in its own memory, or of one on a GPU in a copy.

    Raises ConfigError: they are not in one piece.
    """
    if not tensor.is_contiguous():
        raise ConfigError(
            f"cluster.rollout_workers: a weight of shape {tuple(tensor.shape)} with strides {tensor.stride()} cannot "
            "be sent; set it to 0, or make the model's tensors contiguous"
        )
    data: np.ndarray[tuple[int], np.dtype[np.uint8]] = tensor.view(-1).view(torch.uint8).cpu().numpy()
    return data
