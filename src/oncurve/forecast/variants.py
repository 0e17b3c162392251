"""Models from a configuration alone: their parameters, and small relatives with fewer layers and tokens, any weights.

The cost of a layer does not depend on its weights, so a rehearsal of two depths gives the cost of all layers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from oncurve.base.errors import ConfigError
from oncurve.forecast.shapes import USUAL_RANK, ModelShape
from oncurve.models import LoraSettings
from oncurve.models.adapters import count_factors
from oncurve.models.loading import quiet, said_by, stored_adapter

_TILE = 1 << 16


def count_parameters(config: Any) -> int:
    """Return the parameters of the model of a transformers configuration, tied ones once; nothing is allocated.

    Raises ConfigError where transformers cannot make a model of it.
    """
    return sum(parameter.numel() for parameter in _unallocated(config).parameters())


def with_adapter(shape: ModelShape, lora: LoraSettings, model: Any = None) -> ModelShape:
    """Return `shape` with the parameters of the adapter of `lora`, counted in a model of the configuration `model`.

    Without a configuration they are those of all linear layers, of a stored adapter with the usual rank. Raises
    ModelError: the model lacks the layers that are named; there is no such adapter.
    """
    if not lora.adapted:
        return shape
    if model is None:
        return replace(shape, adapter=shape.low_rank(lora.rank or USUAL_RANK))
    if lora.path is not None:
        return replace(shape, adapter=sum(tensor.numel() for tensor in stored_adapter(lora.path).tensors.values()))
    return replace(shape, adapter=count_factors(_unallocated(model), lora))


def _unallocated(config: Any) -> nn.Module:
    """Return the model of a transformers configuration, without memory."""
    with torch.device("meta"):
        return _from_config(config)


def build_variant(config: Any, layers: int, vocabulary: int) -> nn.Module:
    """Return the model of `config` with this number of layers and tokens, in float32, with arbitrary small weights."""
    smaller = copy.deepcopy(config)
    text = smaller.get_text_config()
    text.num_hidden_layers, text.vocab_size = layers, vocabulary
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types)[:layers]
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, key, None)
    module = _from_config(smaller)
    tile = torch.sin(torch.arange(_TILE) * 0.7) * 0.02
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                flat = parameter.view(-1)
                whole = flat.numel() // _TILE * _TILE
                flat[:whole].view(-1, _TILE).copy_(tile)
                flat[whole:].copy_(tile[: flat.numel() - whole])
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return module


def _from_config(config: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        with quiet(), no_init_weights():
            module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if hasattr(module, "tie_weights"):
            module.tie_weights()  # skipped together with the initialisation
    except Exception as error:  # transformers' errors have no common base
        raise ConfigError(f"transformers makes no model of this configuration{said_by(error)}") from error
    result: nn.Module = module
    for name, parameter in result.named_parameters():
        if not parameter.numel():
            raise ConfigError(f"the model of this configuration has an empty weight: {name} {tuple(parameter.shape)}")
    return result
