"""Functions of tensors that a GPU runs as one kernel: `torch.compile`, on CUDA only and only when they are called.

On a CPU the function itself runs. Where the compiler cannot do it (no C compiler, no Triton) the function itself runs
too, and a warning says so once: slower, the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from oncurve.output import warn

__all__ = ["allow_many_forms", "compiled"]

_FORMS = 64

P = ParamSpec("P")
R = TypeVar("R")


def allow_many_forms() -> None:
    """Let one function be compiled for many dtypes and settings.

    After eight, torch by itself runs it uncompiled without a word, which for attention means all scores at once.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _FORMS)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled for any sizes where its first argument lies on a CUDA device."""
    ready: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        if not (isinstance(first, Tensor) and first.device.type == "cuda"):
            return function(*args, **kwargs)
        if not ready:
            allow_many_forms()
            ready.append(torch.compile(function, dynamic=True))
        try:
            result: R = ready[0](*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler's errors have no common base
            if ready[0] is function:
                raise
            reason = str(error).strip().partition("\n")[0]
            warn(f"{function.__name__} could not be compiled and runs as it is: {reason}")
            ready[0] = function
            return function(*args, **kwargs)
        return result

    return call
