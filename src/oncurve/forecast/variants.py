"""Small relatives of a model, from its configuration alone: fewer layers, fewer tokens in the vocabulary, any weights.

A layer costs what it costs whatever its weights are, so a rehearsal on two depths tells what all layers take.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from oncurve.errors import ConfigError
from oncurve.models.quiet import quiet
from oncurve.models.sources import said_by

__all__ = ["build_variant", "count_parameters"]

_TILE = 1 << 16


def count_parameters(config: Any) -> int:
    """Parameters of the model of a transformers configuration, tied ones once; nothing is allocated.

    Raises ConfigError where transformers cannot make a model of it.
    """
    with torch.device("meta"):
        module = _from_config(config)
    return sum(parameter.numel() for parameter in module.parameters())


def build_variant(config: Any, layers: int, vocabulary: int) -> nn.Module:
    """The model of `config` with so many layers and tokens, in float32, with arbitrary small weights."""
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
            module.tie_weights()  # what skipping the initialisation skips too
    except Exception as error:  # transformers has no common base; whatever a configuration lacks is the user's to see
        raise ConfigError(f"transformers makes no model of this configuration{said_by(error)}") from error
    result: nn.Module = module
    return result
