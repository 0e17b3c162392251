"""The adapter of a run in its forecast: its number of parameters, and one like it for the rehearsal's small models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oncurve.forecast.outlook import USUAL_RANK
from oncurve.forecast.shapes import ModelShape
from oncurve.forecast.variants import unallocated
from oncurve.models import LoraSettings
from oncurve.models.adapters import count_factors
from oncurve.models.loading import stored_adapter


def with_adapter(shape: ModelShape, lora: LoraSettings, model: Any = None) -> ModelShape:
    """`shape` with the parameters of the adapter of `lora`, counted in a model of the configuration `model`.

    Without a configuration they are those of all linear layers, of a stored adapter with the usual rank. Raises
    ModelError: the model lacks the layers that are named; there is no such adapter.
    """
    if not lora.adapted:
        return shape
    if model is None:
        return replace(shape, adapter=shape.low_rank(lora.rank or USUAL_RANK))
    if lora.path is not None:
        return replace(shape, adapter=sum(tensor.numel() for tensor in stored_adapter(lora.path).tensors.values()))
    return replace(shape, adapter=count_factors(unallocated(model), lora))


def rehearsed(lora: LoraSettings, shape: ModelShape) -> LoraSettings:
    """A new adapter in the place of a stored one, which has other layers than a small model: of the same size."""
    if lora.path is None:
        return lora
    return LoraSettings(rank=max(1, round(shape.adapter / shape.low_rank(1))))
