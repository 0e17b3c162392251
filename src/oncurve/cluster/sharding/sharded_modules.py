"""The modules of a network in shards: its root, what is gathered at a time, and the exchange of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed, nn


class Within(nn.Module):
    """A network as the root of its shards: `run` calls a function while the outermost parameters are whole."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def run(self, function: Any, *arguments: Any) -> Any:
        """`function(*arguments)`, which may use the network and its head."""
        return function(*arguments)


def replace_parameters(module: nn.Module, made_of: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Put `made_of(parameter)` in the place of each parameter, tied ones once; shards stay."""
    before = [parameter for parameter in module.parameters() if not isinstance(parameter, distributed.tensor.DTensor)]
    made = {id(parameter): made_of(parameter) for parameter in before}
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in made:
                part.register_parameter(name, made[id(parameter)])


def on_meta(parameter: nn.Parameter) -> nn.Parameter:
    """Its shape, without memory."""
    return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)


def layers_of(module: nn.Module) -> Sequence[nn.Module]:
    """The blocks whose parameters are gathered together: the members of the outermost lists of modules."""
    found: list[nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, nn.ModuleList) else layers_of(child)
    return found


def units_of(root: nn.Module) -> list[Any]:
    """What is gathered at a time: the layers, and the root for the rest."""
    return [unit for unit in root.modules() if isinstance(unit, distributed.fsdp.FSDPModule)]
