"""The weights that a worker samples from: one whole version, checked by its digest.

    snapshot = Snapshot(model, version=3)           in the process that trains: nothing is copied
    for bucket in snapshot.buckets(): ...           at most `BUCKET_BYTES` each, as bytes
    take(model, bucket)                             in the worker, for each bucket
    digest_of(model) == snapshot.digest             then the worker has the whole version

The tensors have the module's own names and bits, not those of a Hugging Face file: an adapter merged into its base
would round differently from the base and the adapter that the learner computes with. Of a model with an adapter only
the adapter is sent, because nothing else changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from oncurve.errors import ConfigError
from oncurve.models import CausalModel
from oncurve.parallel import BUCKET_BYTES

Piece = tuple[str, int, bytes]
"""The name of a tensor, the first byte of a piece of it, and the piece."""


class Snapshot:
    """The weights of `model` as they are, under a version; valid until they change."""

    def __init__(self, model: CausalModel, version: int) -> None:
        self._model, self.version = model, version

    @cached_property
    def digest(self) -> str:
        """`digest_of` the model."""
        return digest_of(self._model)

    def buckets(self, nbytes: int = BUCKET_BYTES) -> Iterator[list[Piece]]:
        """All tensors in pieces, in lists of at most `nbytes` bytes."""
        bucket: list[Piece] = []
        room = nbytes
        for name, tensor in changing_tensors(self._model).items():
            data = _bytes_of(tensor).numpy().data
            start = 0
            while start < len(data):
                piece = bytes(data[start : start + room])
                bucket.append((name, start, piece))
                start, room = start + len(piece), room - len(piece)
                if not room:
                    yield bucket
                    bucket, room = [], nbytes
        if bucket:
            yield bucket


def take(model: CausalModel, bucket: Sequence[Piece]) -> int:
    """Write the pieces of a bucket into the model's tensors; their bytes."""
    tensors = changing_tensors(model)
    for name, start, piece in bucket:
        _bytes_of(tensors[name])[start : start + len(piece)] = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
    return sum(len(piece) for _, _, piece in bucket)


def digest_of(model: CausalModel) -> str:
    """The sha256 of names, types, shapes and bits of the tensors that training changes."""
    found = hashlib.sha256()
    for name, tensor in changing_tensors(model).items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(_bytes_of(tensor).numpy().data)
    return found.hexdigest()


def changing_tensors(model: CausalModel) -> Mapping[str, Tensor]:
    """The tensors that training may change, by the module's own names; tied ones once. With an adapter, those of it."""
    if model.adapter is not None:
        return {name: parameter.detach() for name, parameter in model.adapter.parameters.items()}
    seen: set[tuple[int, torch.Size, torch.dtype]] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in model.module.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if key not in seen or not tensor.numel():
            seen.add(key)
            found[name] = tensor.detach()
    return found


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor on the CPU, in the same memory. Raises ConfigError: they are not in one piece."""
    if not tensor.is_contiguous():
        raise ConfigError(
            f"cluster.rollout_workers: a weight of shape {tuple(tensor.shape)} with strides {tensor.stride()} cannot "
            "be sent; set it to 0, or make the model's tensors contiguous"
        )
    return tensor.view(-1).view(torch.uint8)
