"""Tiny random models of the architectures of transformers, made by shrinking the defaults of their configurations."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.tables import table

VOCABULARY = 64

_SIZES = {name: size for size, names in table("shrunk", "by_size") for name in names.split()}

_OF_THEIR_OWN: dict[str, dict[str, Any]] = table("shrunk", "of_their_own")


def shrunk(kind: str, **settings: Any) -> nn.Module:
    """A model of `kind` (the `model_type` of its configuration), the same at every call."""
    config = _smaller(AutoConfig.for_model(kind)) | _OF_THEIR_OWN.get(kind, {}) | settings
    return of_kind(kind, **config)


def of_kind(kind: str, **settings: Any) -> nn.Module:
    """A model of `kind` of these sizes, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).eval()


def _smaller(config: Any) -> dict[str, Any]:
    """The settings that make it so, those of configurations within it too."""
    smaller: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if hasattr(getattr(config, name, None), "to_dict") and isinstance(value, dict):
            smaller[name] = _smaller(getattr(config, name))
        elif name in _SIZES and value is not None and not isinstance(value, dict):
            smaller[name] = [_SIZES[name]] * 2 if isinstance(value, list) else _SIZES[name]
    return smaller
