"""The gradient of an embedding as the rows that were looked up, without the table of zeros around them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from oncurve.machine.in_order import lookups_in_order
from oncurve.models.head import gradient_dtype


@contextmanager
def sparse_embeddings(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Within: lookups in embeddings of `module` on the CPU have a sparse gradient. After: it has been added to `.grad`.

    A table of 152,000 rows need not be allocated, widened and added for the few hundred rows of a micro-batch, and the
    rows are summed in the precision that the gradient is accumulated in. Lookups go through a stand-in of the weight
    that shares its memory: with a head tied to it, autograd would otherwise hold the head's whole gradient until the
    lookup's arrives, and then their sum as a third tensor. On other devices the gradient is dense, and a GPU adds it up
    in a fixed order.

    The function it yields is called after each micro-batch. It adds the rows so far to the head's gradient, where there
    is one, or merges them once they outnumber the table's rows, so that they do not grow with the batch.
    """
    looked_up = _embeddings(module)
    for part, weight in looked_up:
        part.sparse = True
        part.weight = nn.Parameter(weight.detach())
        part.weight.grad_dtype = gradient_dtype(weight)

    def settle() -> None:
        """Bound the number of gathered rows."""
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
        with lookups_in_order(module):
            yield settle
    finally:
        for part, weight in looked_up:
            found = part.weight.grad
            part.sparse, part.weight = False, weight
            if found is not None:
                _add_gradient(weight, found)


@contextmanager
def rows_looked_up(module: nn.Module) -> Iterator[None]:
    """Within: the same lookups, of parameters that are whole for a pass alone; the backward pass comes after it.

    The rows are added to `.grad`, which is dense, as soon as they are there. A GPU adds them up in a fixed order.
    """
    looked_up = _embeddings(module)
    for part, weight in looked_up:
        part.sparse, part.weight = True, nn.Parameter(weight.detach())
        part.weight.grad_dtype = torch.promote_types(weight.dtype, torch.float32)
        part.weight.register_post_accumulate_grad_hook(partial(_settle, weight))  # type: ignore[no-untyped-call]
    try:
        with lookups_in_order(module):
            yield
    finally:
        for part, weight in looked_up:
            part.sparse, part.weight = False, weight


def _settle(weight: nn.Parameter, stand_in: Tensor) -> None:
    assert stand_in.grad is not None
    found = stand_in.grad.coalesce().to(weight.dtype)
    stand_in.grad = None
    _add_gradient(weight, found if weight.grad is not None else found.to_dense())


def _embeddings(module: nn.Module) -> list[tuple[nn.Embedding, nn.Parameter]]:
    """Return the embeddings on the CPU that are trained and have a dense gradient, each with its weight."""
    return [
        (part, part.weight)
        for part in module.modules()
        if isinstance(part, nn.Embedding)
        and not part.sparse
        and part.weight.requires_grad
        and part.weight.device.type == "cpu"
        and type(part.weight) is nn.Parameter  # not a shard
    ]


def _add_gradient(weight: Tensor, found: Tensor) -> None:
    if weight.grad is None:
        weight.grad = found
    elif weight.grad.is_sparse and not found.is_sparse:
        weight.grad = found.add_(weight.grad)
    else:
        weight.grad.add_(found)
