"""The weights that a worker samples from: one whole version, checked by its digest.

    snapshot = Snapshot(model, version=3)           in the process that trains: nothing is copied
    handle = fleet.put(snapshot.pieces())          one copy per machine, whatever the number of workers
    take(model, pieces)                             in the worker, with what the handle has become
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

    @cached_property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.nbytes for tensor in changing_tensors(self.model).values())

    def pieces(self) -> Iterator[memoryview]:
        """Return the bytes of each tensor."""
        for tensor in changing_tensors(self.model).values():
            yield _bytes_of(tensor).data


def take(model: CausalModel, pieces: Sequence[memoryview]) -> None:
    """Write the pieces of a snapshot into the model's tensors. Raises ValueError: they are not of this model."""
    for tensor, piece in zip(changing_tensors(model).values(), pieces, strict=True):
        target = _bytes_of(tensor)
        target[:] = np.frombuffer(piece, dtype=np.uint8)
        if tensor.device.type != "cpu":
            tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(target))


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
