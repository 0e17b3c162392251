"""A process that samples: an engine of its own, over a copy of the policy, whose weights come in whole versions.

    snapshot = Snapshot(model, version=3)           in the process that trains: nothing is copied
    handle = fleet.put(snapshot.pieces())           one copy per machine, whatever the number of workers
    take(model, pieces)                             in the worker, with what the handle has become
    digest_of(model) == snapshot.digest             then the worker has the whole version

The tensors have the module's own names and bits, not those of a Hugging Face file: an adapter merged into its base
would round differently from the base and the adapter that the learner computes with. Of a model with an adapter only
the adapter is sent, because nothing else changes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from oncurve.base.errors import ConfigError, TrainingError, UserError
from oncurve.machine.threads import begin_process
from oncurve.models import CausalModel, LocalWeights, changing_tensors
from oncurve.processes.fleets import CPU
from oncurve.rollout import RolloutEngine, Sampling
from oncurve.types import Group, Prompt


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


class Worker:
    """The object that `FleetEngine` calls in each process. It decodes by a whole version of the weights or not at all.

    A worker that raises is ended, and another takes its place.

    model    a copy of the policy; `take` replaces its weights
    build    makes the engine
    threads  of this process
    device   where it computes
    """

    def __init__(
        self, model: CausalModel, build: Callable[[], RolloutEngine], threads: int, device: torch.device = CPU
    ) -> None:
        self.model, self.engine, self._threads, self._device = model, build(), threads, device

    def begin(self) -> None:
        """Called once in the worker's own process."""
        begin_process(self._threads)
        self.model.module.to(self._device)

    def take(self, version: int, digest: str, pieces: Sequence[memoryview]) -> None:
        """Sample from these weights from now on. Raises TrainingError: they are not the version's, bit for bit."""
        take(self.model, pieces)
        found = digest_of(self.model)
        if found != digest:
            raise TrainingError(f"the weights of version {version} have digest {found}, and should have {digest}")
        self.engine.follow(LocalWeights(self.model, version))

    def decode(
        self, digest: str, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None, firsts: Sequence[int]
    ) -> list[Group] | UserError:
        """Return the groups of a shard, by the weights that were taken last, which had this `digest`. An error of the
        right weights is returned: it is for the driver, which meets it too.

        Raises TrainingError: log-probs are not finite, or the weights are no longer those that came.
        """
        try:
            groups = self.engine.generate(prompts, draw, sampling, None, firsts)
        except UserError as error:
            if digest_of(self.model) != digest:
                raise TrainingError(f"its weights were damaged after it had taken them: {error}") from error
            return type(error)(str(error))
        if not all(map(isfinite, (value for group in groups for row in group.completions for value in row.logprobs))):
            raise TrainingError("it answered log-probs that are not finite numbers")
        return groups
