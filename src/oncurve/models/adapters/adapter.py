"""The adapter of a model: what is trained, and the switch between it, the base and frozen copies."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.durable import LazyTensors
from oncurve.models.adapters.adapter_files import CONFIG, WEIGHTS, config_text, name_on_disk
from oncurve.models.adapters.layer import NAME, AdaptedLayer, LowRank, Switch
from oncurve.ops import at_least_float32


class Adapter:
    """The adapter in a model.

    parameters   what is trained, by the names in `module.named_parameters()`
    config       PEFT's `LoraConfig`
    """

    def __init__(self, module: nn.Module, config: Any, layers: Mapping[str, AdaptedLayer], switch: Switch) -> None:
        self.config = config
        self._module, self._layers, self._switch = module, dict(layers), switch
        self.parameters: dict[str, nn.Parameter] = {}
        for path in self._layers:
            for factor in (_a(path), _b(path)):
                self.parameters[factor] = module.get_parameter(factor)

    @property
    def rank(self) -> int:
        """The rank of the layers' products (of most of them, where they differ)."""
        return int(self.config.r)

    @property
    def alpha(self) -> float:
        """α."""
        return float(self.config.lora_alpha)

    @property
    def paths(self) -> tuple[str, ...]:
        """The names of the adapted layers."""
        return tuple(self._layers)

    @property
    def quantized(self) -> bool:
        """Return whether a layer of the base is quantised, so that the adapter cannot be merged into it."""
        return any(not layer.base.weight.is_floating_point() for layer in self._layers.values())

    def off(self) -> AbstractContextManager[None]:
        """Return a context in which the model is its base."""
        return self._switch.choosing({})

    def using(self, factors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return a context in which the model has other factors, by the names of `parameters`, such as a frozen
        copy.
        """
        return self._switch.choosing(
            {
                path: LowRank(factors[_a(path)], factors[_b(path)], layer.trained.scale)
                for path, layer in self._layers.items()
            }
        )

    def copy_frozen(self) -> dict[str, Tensor]:
        """Return a copy of the factors as they are now, by the names of `parameters`. Writing to its tensors moves
        it.
        """
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def begins_as_base(self) -> bool:
        """Return whether the adapter changes nothing now: B = 0 in every layer."""
        return all(not bool(layer.trained.b.any()) for layer in self._layers.values())

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Return a context in which no B is 0, for checks of the paths that compute the products; B gets its bits
        back.
        """
        before = {path: layer.trained.b.detach().clone() for path, layer in self._layers.items()}
        try:
            for layer in self._layers.values():
                b = layer.trained.b.detach()
                wave = torch.arange(b.numel(), device=b.device, dtype=torch.float32).mul_(0.7).sin_().view(b.shape)
                b.add_(wave.mul_(0.5 / (layer.trained.scale * b.shape[1])).to(b.dtype))
            yield
        finally:
            for path, layer in self._layers.items():
                layer.trained.b.detach().copy_(before[path])

    def files(self, masters: Mapping[str, Tensor] | None = None) -> dict[str, bytes | Mapping[str, Tensor]]:
        """Return the adapter's files in PEFT's form, by name.

        `masters` stand in for the factors by the parameters' names. The configuration names the base model.
        """
        own, base = masters or {}, str(getattr(self._module, "name_or_path", ""))
        names = {name_on_disk(name): name for name in self.parameters}

        def read(written: str) -> Tensor:
            tensor = own.get(names[written], self.parameters[names[written]])
            return tensor.detach().to("cpu").contiguous()

        tensors = LazyTensors(names, read)
        return {WEIGHTS: tensors, CONFIG: config_text(self.config, base)}

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Return a context in which the module is the base model: its layers are in their own places."""
        for path, layer in self._layers.items():
            _replace(self._module, path, layer.base)
        try:
            yield
        finally:
            for path, layer in self._layers.items():
                _replace(self._module, path, layer)

    def as_peft(self) -> Any:
        """Return a `PeftModel` of the module, whose adapted layers stay those of this adapter."""
        import peft

        with self.removed(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the configuration, which the module has already
            return peft.PeftModelForCausalLM(self._module, self.config)

    def merged(self, masters: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return every tensor of the base by its own name, with s B A added to the adapted weights; each is made when
        read.

        `masters` stand in for the module's tensors, by their names in it. The sum is in float32 at least, and has the
        dtype of the weight that it is added to.

        Raises ModelError where the base is quantised.
        """
        live, exact = self._module.state_dict(keep_vars=True), masters or {}
        names = {self._name_in_base(name): name for name in live if name not in self.parameters}
        adapted = {f"{path}.weight": path for path in self._layers}

        def own(name: str) -> Tensor:
            tensor: Tensor = exact[name] if name in exact else live[name]
            return tensor.detach()

        if self.quantized:
            raise ModelError(
                "the base model is quantised, and merged weights would be rounded again: save the adapter alone, and "
                "merge it over the full base model"
            )

        def make(name: str) -> Tensor:
            tensor = own(names[name])
            if name not in adapted:
                return tensor
            path = adapted[name]
            layer = self._layers[path]
            change = layer.trained.scale * (at_least_float32(own(_b(path))) @ at_least_float32(own(_a(path))))
            change = change if hasattr(layer.base, "in_features") else change.t()  # Conv1D has the transposed matrix
            return (at_least_float32(tensor) + change.to(tensor.device)).to(tensor.dtype)

        return LazyTensors(names, make)

    def _name_in_base(self, name: str) -> str:
        """Return the name in the base model of a tensor of the module."""
        path, _, rest = name.rpartition(".base_layer.")
        return f"{path}.{rest}" if path in self._layers else name


def _a(path: str) -> str:
    return f"{path}.lora_A.{NAME}.weight"


def _b(path: str) -> str:
    return f"{path}.lora_B.{NAME}.weight"


def _replace(module: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, part)
