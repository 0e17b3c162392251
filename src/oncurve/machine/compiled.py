"""Tensor functions that run as one kernel on a GPU: `torch.compile`, on CUDA only, at the first call.

On a CPU the function runs uncompiled. If the compiler fails (no C compiler, no Triton), the function runs uncompiled on
a GPU too, with one warning: slower, the same numbers.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from oncurve.base.output import warn

_FORMS = 64

_EXAMPLE = 509, 16411
"""Rows of an example, and the most numbers of one: primes, so that the compiler takes no other size for the same."""

P = ParamSpec("P")
R = TypeVar("R")


def allow_many_forms() -> None:
    """Let one function be compiled for many dtypes and settings.

    After eight, torch runs it uncompiled without a warning; for attention, all scores would then be in memory at once.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _FORMS)


def on_gpu(device: torch.device) -> bool:
    """Return whether functions are compiled for tensors of `device`."""
    return device.type == "cuda"


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, compiled for all sizes when its first argument is on a CUDA device.

    Kernels are chosen by rule, not by a measurement, which would let the order of a sum differ between two processes.
    """
    ready: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        if not (isinstance(first, Tensor) and on_gpu(first.device)):
            return function(*args, **kwargs)
        if not ready:
            allow_many_forms()
            ready.append(torch.compile(function, dynamic=True, options={"deterministic": True}))
        try:
            result: R = ready[0](*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler's errors have no common base
            if ready[0] is function:
                raise
            reason = str(error).strip().partition("\n")[0]
            warn(f"{function.__name__} could not be compiled and runs uncompiled: {reason}")
            ready[0] = function
            return function(*args, **kwargs)
        return result

    return call


def compiled_sum(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same for a function that adds up: in every process in one order, whatever sizes come first there.

    torch chooses kernels by the sizes of the first call. So an example comes before it, with as many rows everywhere.
    Tensors given by position have rows, in their first dimension; what is given by name has none.
    """
    compiled_function, seen = compiled(function), set[Any]()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        rows = [x for x in args if isinstance(x, Tensor)]
        if on_gpu(rows[0].device):
            named = [x.dtype if isinstance(x, Tensor) else x for x in kwargs.values()]
            form = *((x.dtype, x.shape[1:], x.stride()) for x in rows), *named
            if form not in seen:
                compiled_function(*map(_example, rows), **kwargs)  # type: ignore[arg-type]
                seen.add(form)
        return compiled_function(*args, **kwargs)

    return call


def _example(x: Tensor) -> Tensor:
    rows, most = _EXAMPLE
    if x.is_contiguous():
        return x.new_empty(rows, *(min(size, most) for size in x.shape[1:]))
    return x.new_empty_strided((rows, *x.shape[1:]), x.stride())
