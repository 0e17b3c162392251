"""Models and tokenizers: what predicts the next token, fast where it can be, plainly where it must.

Loaded lazily: importing this package imports neither torch's nor transformers' weight.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncurve.models.causal import CausalModel, Decoder, Head
    from oncurve.models.chat import has_template, render
    from oncurve.models.generic import GenericModel
    from oncurve.models.huggingface import LoadedModel, ModelConfig, eos_ids_of
    from oncurve.models.network import TransformersModel
    from oncurve.models.probe import wrap
    from oncurve.models.saving import save
    from oncurve.models.streams import token_streams

_HOMES = {
    "CausalModel": "causal",
    "Decoder": "causal",
    "GenericModel": "generic",
    "Head": "causal",
    "LoadedModel": "huggingface",
    "ModelConfig": "huggingface",
    "TransformersModel": "network",
    "eos_ids_of": "huggingface",
    "has_template": "chat",
    "render": "chat",
    "save": "saving",
    "token_streams": "streams",
    "wrap": "probe",
}

__all__ = [
    "CausalModel",
    "Decoder",
    "GenericModel",
    "Head",
    "LoadedModel",
    "ModelConfig",
    "TransformersModel",
    "eos_ids_of",
    "has_template",
    "render",
    "save",
    "token_streams",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
