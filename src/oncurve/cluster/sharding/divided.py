"""Models that are divided among the ranks by FSDP2: each rank has its rows of every parameter.

A layer is whole on a rank while it is computed, and the parameters outside the layers (the root) for a pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from oncurve.cluster.sharding.connection import DirectGather, DirectReduce, gathered, library
from oncurve.learner import widened
from oncurve.models import CausalModel
from oncurve.processes.fleets import ProcessorPickler, pickled


class Division:
    """The division of models: as the first rank has them, among all ranks that have joined.

    device    the one that parameters are gathered on
    offload   whether the shards are in the host's memory
    """

    def __init__(self, own: torch.device, offload: bool) -> None:
        """`own` is the device of this rank's model, which may have no memory yet: all use one of rank 0's kind."""
        kinds = ("cpu", "cuda")
        number = float(kinds.index(own.type) if own.type in kinds else 0)
        self.device = torch.device(kinds[int(gathered(number)[0])])
        self.offload = offload
        self._first = library.get_rank() == 0
        self._mesh = DeviceMesh(self.device.type, torch.arange(library.get_world_size()))

    def of(self, model: CausalModel, dtype: torch.dtype | None, frozen: bool = False) -> Divided:
        """Return `model` with a network of its own, whose parameters are shards of rank 0's; `frozen`: none is trained.

        The shards of trained parameters are in float32, and are gathered in `dtype`; others have this dtype themselves.
        None: parameters are gathered as they are.
        """
        own = copy.deepcopy(model, {id(parameter): parameter for parameter in model.module.parameters()})
        root = _Within(own.module)
        on_cpu = self.device.type == "cpu"
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else None
        precision = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
        offload = fsdp.CPUOffloadPolicy(pin_memory=not on_cpu) if self.offload else fsdp.OffloadPolicy()
        for layer in [*_layers_of(own.module), root]:
            replace_parameters(layer, lambda parameter: self._from_first(parameter, dtype, frozen))
            fsdp.fully_shard(layer, mesh=self._mesh, mp_policy=precision, offload_policy=offload)
        for layer in [unit for unit in root.modules() if isinstance(unit, fsdp.FSDPModule)]:
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
            if on_cpu:
                layer.set_custom_all_gather(DirectGather())
                layer.set_custom_reduce_scatter(DirectReduce())
        fsdp.register_fsdp_forward_method(root, "run")
        return Divided(own, root)

    @torch.no_grad()
    def _from_first(self, parameter: nn.Parameter, dtype: torch.dtype | None, frozen: bool) -> nn.Parameter:
        """Rank 0's parameter, whole on every rank, in the dtype of its shards."""
        data = parameter.detach().contiguous() if self._first else torch.empty_like(parameter, device=self.device)
        library.broadcast(data, 0)
        trained = parameter.requires_grad and not frozen
        if trained:
            data = widened(data)
        elif dtype is not None and data.is_floating_point():
            data = data.to(dtype)
        return nn.Parameter(data, requires_grad=trained)


class Divided:
    """A model in shards.

    model        computes within `root.run`
    root         calls functions while the outermost parameters are whole
    parameters   the shards, by the names in the model's network, tied ones once
    """

    def __init__(self, model: CausalModel, root: _Within) -> None:
        self.model, self.root = model, root
        self.parameters: dict[str, Any] = dict(model.module.named_parameters())
        if model.adapter is not None:
            model.adapter.parameters = {name: self.parameters[name] for name in model.adapter.parameters}

    @property
    def rows(self) -> dict[str, Tensor]:
        """This rank's rows of each parameter: views."""
        return {name: local(parameter) for name, parameter in self.parameters.items()}

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The whole shape of each parameter."""
        return {name: list(parameter.shape) for name, parameter in self.parameters.items()}

    def reshard(self) -> None:
        """Drop the outermost parameters, which a pass without a backward leaves whole."""
        root: Any = self.root
        root.reshard()


class _Within(nn.Module):
    """A network as the root of its shards: `run` calls a function while the outermost parameters are whole."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def run(self, function: Any, *arguments: Any) -> Any:
        """Return `function(*arguments)`, which may use the network and its head."""
        return function(*arguments)


def local(tensor: Any) -> Tensor:
    """Return this rank's rows of a sharded tensor: a view."""
    found: Tensor = tensor.detach().to_local()
    return found


def replace_parameters(module: nn.Module, made_of: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Put `made_of(parameter)` in the place of each parameter, tied ones once; shards stay."""
    before = [parameter for parameter in module.parameters() if not isinstance(parameter, DTensor)]
    made = {id(parameter): made_of(parameter) for parameter in before}
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in made:
                part.register_parameter(name, made[id(parameter)])


def on_meta(parameter: nn.Parameter) -> nn.Parameter:
    """Return its shape, without memory."""
    return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)


def _layers_of(module: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks whose parameters are gathered together: the members of the outermost lists of modules."""
    found: list[nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _layers_of(child)
    return found


class Outline:
    """The function `make`. In a process that it is sent to, the parameters of all models that `make` holds are on
    torch's device "meta": they have shapes and no memory. Buffers, such as rotations, are sent as they are."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        """Return what `make` returns."""
        return self._make(*arguments, **others)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return cloudpickle.loads, (pickled(self._make, _Pickler),)


class _Pickler(ProcessorPickler):
    def reducer_override(self, obj: Any) -> Any:
        """Return a parameter becomes its shape; the same parameter in two places stays one, as any object that is
        pickled.
        """
        if isinstance(obj, nn.Parameter):
            return on_meta(obj).__reduce_ex__(2)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def offloading(recipe: Callable[..., Any], make: Callable[..., Any], **others: Any) -> Any:
    """Return what `recipe` makes with `make`, its state being kept in the host's memory."""
    return recipe(make=partial(make, offload=True), **others)
