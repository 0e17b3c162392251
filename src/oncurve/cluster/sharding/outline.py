"""A learner's recipe without the weights of its models, for processes that get their part of them from rank 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
from torch import nn

from oncurve.cluster.sharding.divided import on_meta
from oncurve.processes.fleets import ProcessorPickler, pickled


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
