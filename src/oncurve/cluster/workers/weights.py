"""The weights that a worker samples from: one whole version, checked by its digest.

    snapshot = Snapshot(model, version=3)           in the process that trains: nothing is copied
    handle = fleet.put(snapshot.buckets())          one copy per machine, whatever the number of workers
    take(model, buckets)                            in the worker, with what the handle has become
    digest_of(model) == snapshot.digest             then the worker has the whole version

The tensors have the module's own names and bits, not those of a Hugging Face file: an adapter merged into its base
would round differently from the base and the adapter that the learner computes with. Of a model with an adapter only
the adapter is sent, because nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from oncurve.base.errors import ConfigError
from oncurve.models import CausalModel, changing_tensors
from oncurve.parallel import BUCKET_BYTES


class Snapshot:
    """The weights of `model` as they are, under a version; valid until they change.

    handle   the fleet's copy of them, as soon as there is one; it is freed with the snapshot
    """

    handle: Any = None

    def __init__(self, model: CausalModel, version: int) -> None:
        self.model, self.version = model, version

    @cached_property
    def digest(self) -> str:
        """`digest_of` the model."""
        return digest_of(self.model)

    @property
    def key(self) -> str:
        """Tells the weights from all others."""
        return f"{self.version} {self.digest}"

    @cached_property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.nbytes for tensor in changing_tensors(self.model).values())

    def buckets(self, nbytes: int = BUCKET_BYTES) -> Iterator[memoryview]:
        """Return the bytes of all tensors, one after another, in pieces of `nbytes` and a last one that may be shorter.

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


def take(model: CausalModel, buckets: Sequence[memoryview]) -> None:
    """Write the buckets of a snapshot into the model's tensors. Raises RuntimeError: they are not of this model."""
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
    """Return the XXH3 (128 bits) of names, types, shapes and bits of the tensors that training changes.

    It finds what went wrong by accident; it is no protection against an attacker.
    """
    found = xxhash.xxh3_128()
    for name, tensor in changing_tensors(model).items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(_bytes_of(tensor).data)
    return found.hexdigest()


def _bytes_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes of a tensor in its own memory, or of one on a GPU in a copy.

    Raises ConfigError: they are not in one piece.
    """
    if not tensor.is_contiguous():
        raise ConfigError(
            f"cluster.rollout_workers: a weight of shape {tuple(tensor.shape)} with strides {tensor.stride()} cannot "
            "be sent; set it to 0, or make the model's tensors contiguous"
        )
    data: np.ndarray[tuple[int], np.dtype[np.uint8]] = tensor.view(-1).view(torch.uint8).cpu().numpy()
    return data
