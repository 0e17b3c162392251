"""Packed, prefix-shared attention by the flash kernels in torch's core, for GPUs: nothing padded, no mask, no scores.

The kernels take ragged sequences, one after another, and align queries with the *last* of their keys. So one causal
call, within a window or not, does both kinds of sequence.

    a prompt    its tokens ask, its tokens answer
    a row       its own tokens ask; its group's prompt answers, and then its own tokens

Queries stand in the order of the flat row. Keys and values are gathered for the call: a prompt's once for itself and
once per row. They are a small part of a layer, one head of keys for several of queries, and are gathered again in the
backward pass. There the gradients of a prompt's copies are summed in a fixed order.

Covered: float16 and bfloat16, heads of up to 256 features in steps of 8, keys and values of one size. Anything else
runs on padded rows, as `packed_rows` does: float32 above all, for which there is no flash kernel. So does a shape of
heads for which the kernels fail their trial, which compares values and gradients of small rows with those of the padded
rows. A warning is given once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from oncurve.base.output import warn
from oncurve.machine.in_order import in_order
from oncurve.models.attention.packed_rows import PackedContext, RowLayout

_CLOSE = 5e-2


class Kernels(NamedTuple):
    """A forward and a backward function with the arguments of `aten._flash_attention_forward` and `_backward`."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


CUDA_KERNELS = Kernels(torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward)

_TRIED: dict[tuple[Any, ...], str | None] = {}
"""Why the kernels are not used (None: they are), by shape of heads, dtype, device and window or none."""


class Repeats:
    """Rows of a tensor taken by index, some of them several times: the gradient is summed in the order of the index.

    `index (n,)` int64, on the host. Of the `sources` rows, those from `first` on are taken exactly once. The backward
    of `index_select` would add by atomic operations, in an order that varies.
    """

    def __init__(self, index: Tensor, first: int, sources: int) -> None:
        places, counts = torch.argsort(index, stable=True), torch.bincount(index, minlength=sources)
        several = int(counts[:first].sum())
        self.index, self.first, self.sources = index, first, sources
        self._several, self._once = places[:several], places[several:]
        self._taken = counts[:first].nonzero()[:, 0]
        self.copies = RowLayout(counts[self._taken])

    def take(self, x: Tensor) -> Tensor:
        """Return `(sources, ...)` -> `(n, ...)`."""
        taken: Tensor = _Take.apply(x, self)  # type: ignore[no-untyped-call]
        return taken

    def summed(self, grad: Tensor) -> Tensor:
        """Return `(n, ...)` -> `(sources, ...)`: the gradient of `take`."""
        whole = grad.new_zeros(self.sources, *grad.shape[1:])
        copies = self.copies.pad(grad.index_select(0, self._several))
        whole.index_copy_(0, self._taken, copies.sum(1))  # half precision is added up in float32
        torch.index_select(grad, 0, self._once, out=whole[self.first :])
        return whole


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, repeats: Repeats) -> Tensor:
        ctx.repeats = repeats
        return x.index_select(0, repeats.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.repeats.summed(grad), None


class Sequences:
    """The sequences of the one call: ends of their queries and keys `(S + 1,)` int32, and which token each key is of.

    Rows without tokens of their own are not among them: every sequence asks.
    """

    def __init__(self, prompts: RowLayout, rows: RowLayout, groups: Tensor) -> None:
        lengths = torch.cat([prompts.lengths, rows.lengths])
        first, sources = int(prompts.lengths.sum()), int(lengths.sum())
        spans = torch.split(torch.arange(sources), lengths.tolist())
        own = spans[prompts.count :]
        keys = [*spans[: prompts.count]]
        keys += [torch.cat([spans[group], span]) for group, span in zip(groups.tolist(), own, strict=True) if len(span)]
        self.repeats = Repeats(torch.cat(keys), first, sources)
        sizes = [torch.tensor([0, *(len(span) for span in many if len(span))]) for many in (spans, keys)]
        self.query_ends, self.key_ends = (many.cumsum(0).to(torch.int32) for many in sizes)
        # At least 2: of one query per sequence the kernels make a decoding step, which is laid out in another way.
        self.longest = tuple(max(2, int(many.max())) for many in sizes)

    def gathered(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of all sequences `(K, h_kv, d)`, one after another."""
        index = self.repeats.index
        return key.index_select(0, index), value.index_select(0, index)

    @property
    def tables(self) -> tuple[Any, ...]:
        """Return the ends, and the most queries and keys of a sequence, as the kernels take them."""
        return self.query_ends, self.key_ends, *self.longest


class FlashContext(PackedContext):
    """`PackedContext` with another attention, and with sums whose order does not vary from run to run."""

    kernels = CUDA_KERNELS

    def _parts(self) -> list[object]:
        self._sequences = Sequences(self._prompts, self._completions, self._groups)
        self._predicting = Repeats(self.predictors, self._prompt_tokens, len(self.ids))
        repeats = (self._sequences.repeats, self._predicting)
        return [*super()._parts(), self._sequences, *repeats, *(found.copies for found in repeats)]

    def predicting(self, hidden: Tensor) -> Tensor:
        """Return the hidden states that predict each completion token: of all tokens `(N, H)` -> `(N', H)`."""
        return self._predicting.take(hidden)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of one layer. Stores nothing, so any layer may be run again."""
        if self.kernels is CUDA_KERNELS and not _usable(query, key, value, window):
            return super().attend(layer, query, key, value, scale, window)
        return self.in_one_call(query, key, value, scale, window)

    def in_one_call(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Return `attend` by the kernels."""
        attended: Tensor = _Flash.apply(query, key, value, self._sequences, self.kernels, scale, window)  # type: ignore[no-untyped-call]
        return attended


class _Flash(torch.autograd.Function):
    """Differentiable once; saved are queries, keys and values as they come, outputs, and a log-sum-exp per query."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: Sequences,
        kernels: Kernels,
        scale: float,
        window: int | None,
    ) -> Tensor:
        ctx.backward_kernel, ctx.sequences = kernels.backward, sequences
        before = -1 if window is None else window - 1
        ctx.options = {"scale": scale, "window_size_left": before, "window_size_right": 0}
        out, log_sums, *random, _ = kernels.forward(
            query, *sequences.gathered(key, value), *sequences.tables, 0.0, True, False, **ctx.options
        )
        ctx.save_for_backward(query, key, value, out, log_sums, *random)
        return out  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, log_sums, *random = ctx.saved_tensors
        sequences = ctx.sequences
        with in_order():
            by_query, *by_gathered = ctx.backward_kernel(
                *(grad, query, *sequences.gathered(key, value), out, log_sums),
                *(*sequences.tables, 0.0, True, *random),
                **ctx.options,
            )
        by_key, by_value = sequences.repeats.summed(torch.cat(by_gathered, 1)).split(key.shape[1], 1)
        return by_query, by_key, by_value, None, None, None, None


def _usable(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> bool:
    heads = query.shape[1], key.shape[1], query.shape[2]
    if query.dtype.itemsize != 2 or heads[2] != value.shape[2] or heads[2] % 8 or heads[2] > 256:
        return False
    case = (*heads, query.dtype, query.device, window is None)
    if case not in _TRIED:
        _TRIED[case] = reason = trial(CUDA_KERNELS, heads, query.dtype, query.device, window is not None)
        if reason is not None:
            warn(f"Flash attention is not used, attention runs on padded rows: {reason}")
    return _TRIED[case] is None


def trial(
    kernels: Kernels, heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device, windowed: bool
) -> str | None:
    """Return why kernels are not used: they fail, or differ from the padded rows in value or gradient. None: they may
    be used.

    `heads` are numbers of query and key heads, and their features. The rows are ragged, one has no tokens of its own,
    and some are longer than a kernel's block.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([70, 0, 1, 200, 33])
    prompts = [torch.zeros(length, dtype=torch.int64) for length in (150, 5, 64)]
    completions = torch.zeros(5, 200, dtype=torch.int64)
    context = FlashContext(prompts, torch.tensor([0, 0, 1, 2, 2]), completions, lengths, device)
    context.kernels = kernels
    query_heads, kv_heads, size = heads
    inputs = [
        torch.randn(len(context.ids), count, size, generator=generator).to(device, dtype).requires_grad_()
        for count in (query_heads, kv_heads, kv_heads)
    ]
    asked = (*inputs, size**-0.5, 40 if windowed else None)
    try:
        with torch.enable_grad():
            results = [context.in_one_call(*asked), PackedContext.attend(context, 0, *asked)]
            gradients = [torch.autograd.grad(result.square().sum(), inputs) for result in results]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a kernel's errors have no common base
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    for ours, theirs in (results, *zip(*gradients, strict=True)):
        difference = float((ours - theirs).detach().float().norm() / theirs.detach().float().norm())
        if not difference <= _CLOSE:
            return f"it differs from the padded rows by {difference:.1e}"
    return None
