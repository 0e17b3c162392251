"""Puts an adapter into a module in place: the module keeps its class, its weights are frozen.

Covered: linear layers and GPT-2's `Conv1D`. Not covered: embeddings, and the experts and routers of transformers 5's
mixtures, which are fused parameters and no layers: they stay frozen, and "all-linear" is the attention and what else is
dense.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError, suggest
from oncurve.models.adapters.adapter import Adapter
from oncurve.models.adapters.adapter_files import StoredAdapter
from oncurve.models.adapters.layer import NAME, Switch, adopt
from oncurve.models.adapters.settings import LoraSettings
from oncurve.ops import at_least_float32
from oncurve.randomness import weight_uniforms


def put_adapter(module: nn.Module, settings: LoraSettings, seed: int, stored: StoredAdapter | None = None) -> Adapter:
    """Put the adapter of `settings`, or the `stored` one, into `module` in place and freeze everything else.

    A new adapter begins as nothing: B = 0, and A is uniform in ±1 / sqrt(H), as PEFT draws it, by `seed` and the
    place of the layer alone. The random generators are unchanged. Factors are in float32 at least.

    Raises ModelError, with the module unchanged, where PEFT is not installed, the module has an adapter already, or
    it lacks the layers that are named.
    """
    peft = import_peft()
    refuse_adapter(module)
    if stored is None:
        paths = _targets(module, settings.targets)
        config = peft.LoraConfig(
            r=settings.rank,
            lora_alpha=int(settings.scaled_by) if settings.scaled_by.is_integer() else settings.scaled_by,
            target_modules=_short(module, paths),
            task_type="CAUSAL_LM",
        )
    else:
        _check_fits(module, stored)
        paths, config = list(stored.shapes), stored.config
        config.target_modules = set(_short(module, paths))
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fan_in_fan_out that PEFT corrects itself
        peft.inject_adapter_in_model(config, module, NAME)
    config.base_model_name_or_path = getattr(module, "name_or_path", None) or None
    switch, parts = Switch(), dict(module.named_modules())
    layers = {path: adopt(parts[path], path, switch) for path in paths}
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    adapter = Adapter(module, config, layers, switch)
    values = stored.tensors if stored is not None else _beginning(adapter.parameters, seed)
    with torch.no_grad():
        for name, parameter in adapter.parameters.items():
            if parameter.shape != values[name].shape:
                raise ModelError(f"lora.path: the rank in its configuration is not that of its tensor {name}")
            exact = at_least_float32(parameter).dtype  # a learner makes half-precision copies itself
            parameter.data = values[name].to(parameter.device, exact, copy=True)
            parameter.requires_grad_(True)
    return adapter


def refuse_adapter(module: nn.Module) -> None:
    """Raises ModelError where PEFT has put an adapter into the module."""
    if any(name.endswith(".base_layer") or name == "base_layer" for name, _ in module.named_modules()):
        raise ModelError("the model has an adapter already; give the base model, and its adapter as lora.path")


def count_factors(module: nn.Module, settings: LoraSettings) -> int:
    """Return parameters of a new adapter in `module`, r·(H + O) of each layer. Raises ModelError as `put_adapter`
    does.
    """
    layers = dict(_linear(module))
    return settings.rank * sum(sum(features(layers[path])) for path in _targets(module, settings.targets))


def import_peft() -> Any:
    """Return the package peft. Raises ModelError with the command that installs it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import peft
    except ImportError as error:
        raise ModelError(f"lora: adapters need PEFT ({error}); install it with: pip install 'oncurve[lora]'") from error
    return peft


def _beginning(parameters: Mapping[str, nn.Parameter], seed: int) -> dict[str, Tensor]:
    """Return the values of a new adapter by the parameters' names."""
    values = {name: torch.zeros(parameter.shape, dtype=torch.float64) for name, parameter in parameters.items()}
    for index, (name, value) in enumerate(values.items()):
        if ".lora_A." in name:
            uniform = weight_uniforms(seed, index, value.numel()).view(value.shape)
            value.copy_((2 * uniform - 1) / math.sqrt(value.shape[1]))
    return values


def _linear(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the layers below `module` that can have an adapter, by name."""
    for path, part in module.named_modules():
        if type(part) is nn.Linear or type(part).__name__ in ("Conv1D", "Linear4bit"):
            yield path, part


def _tied(module: nn.Module) -> set[str]:
    """Return the names of the parts whose weight another part has, too."""
    owners: dict[int, list[str]] = {}
    for path, part in module.named_modules():
        weight = part._parameters.get("weight")
        if weight is not None:
            owners.setdefault(id(weight), []).append(path)
    return {path for paths in owners.values() if len(paths) > 1 for path in paths}


def _targets(module: nn.Module, wanted: str | Sequence[str]) -> list[str]:
    """Return the full names of the layers that get an adapter. Raises ModelError: a name that means no linear layer."""
    layers, tied = dict(_linear(module)), _tied(module)
    network = cast(Any, module)
    head = network.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    if isinstance(wanted, str):
        found = [path for path, part in layers.items() if part is not head and path not in tied]
        if not found:
            raise ModelError(f'lora.targets = "all-linear": {type(module).__name__} has no linear layer to adapt')
        return found
    known, paths = {path.rpartition(".")[2] for path in layers}, [path for path, _ in module.named_modules()]
    for name in wanted:
        matching = [path for path in paths if _is(path, name)]
        if not matching:
            near, listed = suggest(name, known) or ";", ", ".join(sorted(known))
            raise ModelError(f"lora.targets: the model has no layer {name!r}{near} its linear layers: {listed}")
        for path in matching:
            if path in tied:
                raise ModelError(
                    f"lora.targets: {path} shares its weight with another layer (tied embeddings), and an adapter "
                    "would change one of them alone; leave it out"
                )
            if path not in layers:
                kind = type(dict(module.named_modules())[path]).__name__
                raise ModelError(f"lora.targets: {path} is of the class {kind} and no linear layer; leave it out")
    return [path for path in layers if any(_is(path, name) for name in wanted)]


def _is(path: str, name: str) -> bool:
    return path == name or path.endswith("." + name)


def _short(module: nn.Module, paths: Sequence[str]) -> list[str]:
    """Return the last parts of the layers' names where these mean no other layer; else the whole names."""
    ends = sorted({path.rpartition(".")[2] for path in paths})
    meant = [path for path, _ in module.named_modules() if any(_is(path, end) for end in ends)]
    return ends if sorted(meant) == sorted(paths) else list(paths)


def _check_fits(module: nn.Module, stored: StoredAdapter) -> None:
    """Raises ModelError where the stored adapter is of a model with other layers."""
    layers = dict(_linear(module))
    for path, (rows, columns) in stored.shapes.items():
        if path not in layers:
            near = suggest(path, layers)
            raise ModelError(f"{stored.source}: its layer {path} is not in the model, so it is of another{near}")
        here = features(layers[path])
        if here != (columns, rows):
            raise ModelError(
                f"{stored.source}: its {path} takes {columns} numbers to {rows}, the model's {here[0]} to {here[1]}: "
                "it is of another model"
            )


def features(layer: Any) -> tuple[int, int]:
    """Return how many numbers a linear layer takes, and how many it gives."""
    if hasattr(layer, "in_features"):
        return int(layer.in_features), int(layer.out_features)
    rows, columns = layer.weight.shape  # Conv1D has the transposed matrix
    return int(rows), int(columns)
