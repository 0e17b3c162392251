"""The gradient of an embedding as the rows that were looked up, not as a whole table of zeros around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["sparse_embeddings"]


@contextmanager
def sparse_embeddings(module: nn.Module) -> Iterator[None]:
    """Within: what is looked up in an embedding below `module` on the CPU has a sparse gradient there.

    A table of 152,000 rows is not made, widened and added for the few hundred rows of a micro-batch; and the rows are
    summed in the precision the gradient is accumulated in. Other devices keep their dense gradient: a sparse one is
    added by atomic operations there, in another order each time.
    """
    changed = [
        part
        for part in module.modules()
        if isinstance(part, nn.Embedding) and not part.sparse and part.weight.device.type == "cpu"
    ]
    for part in changed:
        part.sparse = True
    try:
        yield
    finally:
        for part in changed:
            part.sparse = False
