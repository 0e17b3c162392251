"""The gradient of an embedding as the rows that were looked up, not as a whole table of zeros around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from oncurve.models.gradients import gradient_dtype

__all__ = ["sparse_embeddings"]


@contextmanager
def sparse_embeddings(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Within: what is looked up in embeddings below `module` on the CPU has a sparse gradient; after: it is in `.grad`.

    A table of 152,000 rows is not made, widened and added for the few hundred rows of a micro-batch; and the rows are
    summed in the precision the gradient is accumulated in. Lookups go through a stand-in of the weight that shares its
    memory: where the head is tied to it, autograd would otherwise hold the head's whole gradient until the lookup's
    comes, and then a sum of both beside it. Other devices keep their dense gradient: a sparse one is added by atomic
    operations there, in another order each time.

    What it gives is to be called after each micro-batch: the rows so far are added to the head's gradient, where there
    is one, or to each other, where they have become more than the table has. So they do not grow with the batch.
    """
    looked_up = [
        (part, part.weight)
        for part in module.modules()
        if isinstance(part, nn.Embedding)
        and not part.sparse
        and part.weight.requires_grad
        and part.weight.device.type == "cpu"
    ]
    for part, weight in looked_up:
        part.sparse = True
        part.weight = nn.Parameter(weight.detach())
        part.weight.grad_dtype = gradient_dtype(weight)

    def settle() -> None:
        """Bound the rows that have gathered, see above."""
        for part, weight in looked_up:
            found = part.weight.grad
            if found is None or not found.is_sparse:
                continue
            if weight.grad is not None and not weight.grad.is_sparse:
                _add_gradient(weight, found)
                part.weight.grad = None
            elif found._nnz() > len(weight):
                part.weight.grad = found.coalesce()

    try:
        yield settle
    finally:
        for part, weight in looked_up:
            found = part.weight.grad
            part.sparse, part.weight = False, weight
            if found is not None:
                _add_gradient(weight, found)


def _add_gradient(weight: Tensor, found: Tensor) -> None:
    if weight.grad is None:
        weight.grad = found
    elif weight.grad.is_sparse and not found.is_sparse:
        weight.grad = found.add_(weight.grad)
    else:
        weight.grad.add_(found)
