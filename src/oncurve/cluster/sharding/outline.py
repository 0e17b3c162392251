"""A learner's recipe without the weights of its models, for processes that get their part of them from rank 0."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import torch
from torch import nn

from oncurve.processes.fleets import ProcessorPickler


class Outline:
    """The function `make`. In a process that it is sent to, the parameters of all models that `make` holds are on
    torch's device "meta": they have shapes and no memory. Buffers, such as rotations, are sent as they are."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        """Return what `make` returns."""
        return self._make(*arguments, **others)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(self._make)
        return cloudpickle.loads, (buffer.getvalue(),)


class _Pickler(ProcessorPickler):
    def reducer_override(self, obj: Any) -> Any:
        """A parameter becomes its shape; the same parameter in two places stays one, as any object that is pickled."""
        if isinstance(obj, nn.Parameter):
            return _on_meta, (obj.shape, obj.dtype, obj.requires_grad)
        return super().reducer_override(obj)


def _on_meta(shape: torch.Size, dtype: torch.dtype, trained: bool) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=trained)


def offloading(recipe: Callable[..., Any], make: Callable[..., Any], **others: Any) -> Any:
    """Return what `recipe` makes with `make`, its state being kept in the host's memory."""
    return recipe(make=partial(make, offload=True), **others)
