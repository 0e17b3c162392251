"""The weights that a rollout engine samples from: the module itself in one process, tensors by name for all others."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oncurve.base.errors import ModelError
from oncurve.models.causal import CausalModel
from oncurve.models.loading.saving import hub_tensors


class Weights(Protocol):
    """One version of a policy's weights, handed to `RolloutEngine.follow`."""

    @property
    def version(self) -> int:
        """Return how often the weights have changed; an engine writes it on every completion that it samples."""
        ...

    def local(self) -> CausalModel | None:
        """Return the live model where it is in this process, so that nothing is copied; None: only `buckets` has the
        weights.

        The learner goes on changing this model: an engine that may lag must copy it.
        """

    def buckets(self, nbytes: int) -> Iterator[Mapping[str, Tensor]]:
        """Return all tensors under their Hugging Face names, in the dtype that the model computes in, on the model's
        device.

        A bucket has at most `nbytes` bytes, unless a single tensor has more. Tied weights come once; an adapter is
        merged into the weights. The tensors may be
        the live ones: they are to be copied before the next update.
        """


@dataclass(frozen=True)
class LocalWeights:
    """`Weights` of a model in this process."""

    model: CausalModel
    version: int

    def local(self) -> CausalModel:
        """Return the model itself."""
        return self.model

    def buckets(self, nbytes: int) -> Iterator[Mapping[str, Tensor]]:
        """Return the module's own tensors, in its order."""
        bucket: dict[str, Tensor] = {}
        size = 0
        for name, tensor in hub_tensors(self.model.module, self.model.adapter):
            if bucket and size + tensor.nbytes > nbytes:
                yield bucket
                bucket, size = {}, 0
            bucket[name] = tensor
            size += tensor.nbytes
        if bucket:
            yield bucket


def changing_tensors(model: CausalModel) -> Mapping[str, Tensor]:
    """Return the tensors that training may change, by the module's own names; tied ones once. With an adapter, those of
    it.
    """
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


def held(weights: LocalWeights, into: LocalWeights | None = None) -> LocalWeights:
    """Return the weights as they are now, in a model of its own that no update changes. Of a model with an adapter only
    the adapter is copied. Raises ModelError: the model cannot be copied.

    into   an earlier result that is not needed any more: its model takes the weights, and keeps what was captured of it
    """
    model = weights.model
    if into is not None:
        taking = changing_tensors(into.model)
        for name, tensor in changing_tensors(model).items():
            taking[name].copy_(tensor)
        return LocalWeights(into.model, weights.version)
    trained = set() if model.adapter is None else set(map(id, model.adapter.parameters.values()))
    frozen = [] if model.adapter is None else [each for each in model.module.parameters() if id(each) not in trained]
    try:
        twin = copy.deepcopy(model, {id(parameter): parameter for parameter in frozen})
    except Exception as error:
        raise ModelError(
            f"{type(model.module).__name__} cannot be copied, which cluster.lag > 0 needs ({error}); set it to 0"
        ) from error
    for parameter in twin.module.parameters():
        parameter.grad = None
    return LocalWeights(twin, weights.version)
