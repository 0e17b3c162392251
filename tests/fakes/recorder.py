"""A CUDA graph for tests: operations recorded once and repeated on the very same tensors, without any Python.

Whatever asks the host for a number, or makes a shape from data, is refused while recording, as a capture refuses it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fakes.tables import table

WAITS = {name.partition(".")[0] for name in table("pretended_gpu", "waiting")} | {"item", "unique_dim"}


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation._schema.name.removeprefix("aten::")
        if name in WAITS:
            raise RuntimeError(f"{name} waits for the device: a CUDA graph cannot hold it")
        result = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, result))
        return result


def record(step: Callable[[], None]) -> Callable[[], None]:
    """`Capture` in the manner of CUDA: three runs, then one that is recorded and counts for nothing by itself."""
    for _ in range(3):
        step()
    with _Recording() as recording:
        step()

    def replay() -> None:
        for operation, args, kwargs, result in recording.operations:
            returned = operation._schema.returns
            if returned and returned[0].alias_info is not None and not returned[0].alias_info.is_write:
                continue  # a view: it shows what is there now
            again = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)

    return replay
