"""Linear head and log-softmax in one: token log-probabilities and their gradient, without all `(N, V)` logits at once.

With logits z = W h / τ, a token's log-probability is `z_id - L`, L = log Σ_v exp z_v, and its gradient in z is
`[v = id] - exp(z_v - L)`. Both passes go over the vocabulary in blocks, for all N tokens at once:

    forward     a block's logits; their log-sum-exp and mean, `(N,)` each, are kept, the logits are not
    backward    a block's logits again; their gradient in the same place; ∂h gets the block's share, ∂W its rows

The blocks are of the vocabulary, not of tokens: every row of ∂W is written once, by one product over all tokens, and W
is read once per pass. With blocks of tokens ∂W would be added up again for each chunk, which at a vocabulary of 150,000
costs more than the products. Products run in the weights' precision, sums over the vocabulary in float32 at least, and
∂h is summed over the blocks in float32 at least.

Where all logits fit into `kept_bytes` they are kept, in the weights' precision, and the backward saves one product of
four, or of three where W is frozen. No result depends on that: a score without a gradient has the bits of one with it.

Truncated sampling: with the `kept` sets of the tokens, both are of the distribution renormalised over them.

Covered: a head that is one matrix; bf16, float32, float64; CPU and CUDA, the same operations. No step waits for the
device. Not covered: biases, soft caps, second derivatives, logits of -inf (a matrix makes none).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from oncurve.machine.compiled import compiled, compiled_sum
from oncurve.models.head.gradient_buffers import GradientByRows
from oncurve.models.head.kept_sets import FAR, NEGLIGIBLE, KeptSets

WORKSPACE_BYTES = 12 * 2**20
"""Logits of one block. On the CPU below 32 MiB, from where on glibc gives every temporary back to the system."""

ACCELERATOR_WORKSPACE_BYTES = 512 * 2**20
"""The same on any other device, which large products keep busy."""

KEPT_BYTES = 64 * 2**20
"""Up to this many bytes of logits are kept for the backward instead of computed again."""

FROZEN_KEPT_BYTES = 512 * 2**20
"""The same where the matrix is frozen: they take less than its gradient would, and their product is one of three."""

# Numbers per elementwise operation: on the CPU 1 MiB in float32, so that a chain of them stays in the cache.
_AT_ONCE = 1 << 18
_ACCELERATOR_AT_ONCE = 1 << 25

# Widths of blocks are multiples of this, or products lose their alignment.
_ALIGNED = 64


def matrix_of(head: nn.Module) -> Tensor | None:
    """Return the `(V, H)` matrix that `head` multiplies hidden states by; None where it does anything else."""
    if type(head) is not nn.Linear or [name for name, _ in head.named_parameters()] != ["weight"]:
        return None
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    return None if any(map(len, hooks)) else head.weight


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    *,
    with_entropy: bool = False,
    kept: KeptSets | None = None,
    kept_bytes: int | None = None,
    workspace_bytes: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return `log softmax(hidden Wᵀ / temperature)[id]` of each token `(N,)`, and the entropies `(N,)` in nats if
    wanted.

    Args:
        hidden: `(N, H)`.
        weight: `(V, H)`, in the dtype of `hidden`.
        ids: `(N,)` int64 in 0..V-1.
        temperature: > 0.
        with_entropy: also `H = -Σ_v π(v) log π(v)`; costs little more than the log-probabilities.
        kept: the sets that the tokens were sampled from; None: the whole vocabulary.
        kept_bytes: up to this many bytes of logits, `N · V` in the weights' precision, are kept for the backward; by
            default by whether the weight is trained.
        workspace_bytes: logits of one block of the vocabulary; by default by the device.

    Returns:
        Both in float32 at least, differentiable (once) with respect to `hidden` and `weight`. The gradient of a
        half-precision weight comes in the dtype its `grad` is accumulated in (`gradients.gradient_dtype`), and goes
        there by itself where that is a tensor that stays (`gradients.keep_gradient`).

    Raises:
        ValueError: a temperature that is not positive, or shapes that do not fit.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0 to have log-probabilities, got {temperature}")
    tokens = hidden.shape[0]
    if hidden.ndim != 2 or ids.shape != (tokens,) or weight.ndim != 2 or weight.shape[1] != hidden.shape[1]:
        raise ValueError(
            f"hidden (N, H), weight (V, H) and ids (N,) do not belong together: "
            f"{tuple(hidden.shape)}, {tuple(weight.shape)}, {tuple(ids.shape)}"
        )
    if workspace_bytes is None:
        workspace_bytes = WORKSPACE_BYTES if hidden.device.type == "cpu" else ACCELERATOR_WORKSPACE_BYTES
    if kept_bytes is None:
        kept_bytes = KEPT_BYTES if weight.requires_grad else FROZEN_KEPT_BYTES
    trained = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    keep = trained and tokens * weight.shape[0] * weight.itemsize <= kept_bytes
    logprobs, entropy = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, ids, temperature, with_entropy, kept, keep, workspace_bytes
    )
    return logprobs, entropy if with_entropy else None


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        temperature: float,
        with_entropy: bool,
        sets: KeptSets | None,
        keep: bool,
        workspace_bytes: int,
    ) -> tuple[Tensor, Tensor | None]:
        tokens = len(ids)
        blocks = _blocks(tokens, weight, workspace_bytes)
        size, kept = tokens * blocks[0][1], []
        work = weight.new_empty(0 if keep else size)
        chosen = torch.zeros(tokens, dtype=_exact(weight), device=weight.device)
        sums = chosen.new_empty(len(blocks), tokens)
        means = torch.empty_like(sums)
        places = [] if sets is None else sets.places(blocks)
        for number, (first, last) in enumerate(blocks):
            logits = _product(hidden, weight[first:last], weight.new_empty(size) if keep else work)
            if sets is not None:
                sets.leave_out(logits, FAR, places[number])
            if keep:
                kept.append(logits)
            place, inside = _place(ids, first, last)
            chosen += torch.where(inside, logits.gather(1, place), 0.0).squeeze(1)
            for rows in _slices(logits):
                sums[number, rows], means[number, rows] = _moments(
                    logits[rows], temperature=temperature, with_mean=with_entropy, truncated=sets is not None
                )
        total = sums.logsumexp(0)
        logprobs = chosen / temperature - total
        entropy = total - ((sums - total).exp() * means).sum(0) if with_entropy else None
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.sets, ctx.places, ctx.workspace_bytes = temperature, sets, places, workspace_bytes
        ctx.save_for_backward(hidden, weight, ids, total, logprobs, entropy, *kept)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, total, logprobs, entropy, *kept = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        # A token's row of the gradient is its factor times `π - onehot`. The factor is left out of the blocks and
        # multiplied into what they meet, which is smaller; unless the entropy has a gradient, which has none in common.
        factor = torch.zeros_like(total) if by_logprob is None else by_logprob.to(total.dtype) / -ctx.temperature
        rise, outside = torch.expm1(logprobs), factor
        slopes = None
        if by_entropy is not None:
            slope = by_entropy.to(total.dtype) / -ctx.temperature
            slopes, outside = torch.stack([factor, slope, entropy], 1), torch.ones_like(factor)
            rise = factor * rise + slope * logprobs.exp() * (logprobs + entropy)
        met = (hidden * outside[:, None]).to(hidden.dtype)
        by_hidden = total.new_zeros(hidden.shape) if wants_hidden else None
        by_weight = GradientByRows(weight) if wants_weight else None
        blocks = _blocks(len(ids), weight, ctx.workspace_bytes)
        work = weight.new_empty(len(ids) * blocks[0][1])
        for number, (first, last) in enumerate(blocks):
            matrix = weight[first:last]
            logits = kept[number] if kept else _product(hidden, matrix, work)
            gradient = work[: logits.numel()].view(logits.shape)
            for rows in _slices(logits):
                terms = None if slopes is None else slopes[rows]
                given = logits[rows]
                made = gradient[rows] if kept else given  # for the compiler one tensor, not two views of it
                _gradient(given, made, total[rows, None], ctx.temperature, terms, ctx.sets is not None)
            if ctx.sets is not None:
                ctx.sets.leave_out(gradient, 0.0, ctx.places[number])
            _write(gradient, rise, *_place(ids, first, last))
            if by_hidden is not None and by_hidden.dtype == gradient.dtype:
                by_hidden.addmm_(gradient, matrix)
            elif by_hidden is not None:
                by_hidden.add_(gradient @ matrix)
            if by_weight is not None:
                by_weight.put(first, gradient.t() @ met)
        if by_hidden is not None:
            by_hidden = by_hidden.mul_(outside[:, None]).to(hidden.dtype)
        return by_hidden, None if by_weight is None else by_weight.done(), *[None] * 6


@compiled_sum
def _moments(logits: Tensor, *, temperature: float, with_mean: bool, truncated: bool) -> tuple[Tensor, Tensor]:
    """Return for z = `logits (n, v)` / τ: `log Σ_v exp z` and the mean of z under its softmax (or 0), `(n,)` each."""
    logits = logits.to(_exact(logits))
    top = logits.amax(1, keepdim=True)
    below = logits - top
    if temperature != 1:
        below, top = below / temperature, top / temperature
    if truncated:
        below.clamp_(min=NEGLIGIBLE)
    weights = below.exp()
    total = weights.sum(1)
    top = top.squeeze(1)
    mean = weights.mul_(below).sum(1) / total + top if with_mean else torch.zeros_like(total)
    return total.log() + top, mean


@compiled
def _gradient(
    logits: Tensor, out: Tensor, total: Tensor, temperature: float, slopes: Tensor | None, truncated: bool
) -> None:
    """Write to `out` the gradient in z = `logits (n, v)` / τ as if no token had been chosen; it may be `logits`.

    `π`, or with `slopes (n, 3)` = f, s, H of each row `f π + s π (log π + H)`: -s is the gradient of the entropy H.
    """
    scaled = logits.to(_exact(logits))
    logprobs = (scaled if temperature == 1 else scaled / temperature) - total
    if truncated:
        logprobs.clamp_(NEGLIGIBLE, 0.0)  # above 0 are tokens that are not kept
    if slopes is None:
        out.copy_(logprobs.exp_())
        return
    factor, slope, entropy = slopes[:, 0:1], slopes[:, 1:2], slopes[:, 2:3]
    out.copy_(logprobs.exp() * (factor + slope * (logprobs + entropy)))


def _exact(x: Tensor) -> torch.dtype:
    """Return the dtype of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _product(hidden: Tensor, matrix: Tensor, work: Tensor) -> Tensor:
    """Return the logits `(N, v)` of one block, made in `work`."""
    shape = len(hidden), len(matrix)
    return torch.mm(hidden, matrix.t(), out=work[: shape[0] * shape[1]].view(shape))


def _write(block: Tensor, values: Tensor, place: Tensor, inside: Tensor) -> None:
    """`block[i, place[i]] = values[i]` where `inside`. (`scatter_` copies a bf16 block to float32 and back.)"""
    rows = torch.arange(len(block), device=block.device)
    values = torch.where(inside, values[:, None].to(block.dtype), block.gather(1, place))
    block.view(-1).index_copy_(0, rows * block.shape[1] + place.squeeze(1), values.squeeze(1))


def _place(ids: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Return where in the block each token's id stands (anywhere if it does not), and whether it does: `(N, 1)`
    each.
    """
    place = ids[:, None] - first
    return place.clamp(0, last - first - 1), (place >= 0) & (place < last - first)


def _blocks(tokens: int, weight: Tensor, workspace_bytes: int) -> list[tuple[int, int]]:
    """Return ranges of the vocabulary, the first the widest, whose logits of all tokens fill at most the workspace."""
    vocabulary = weight.shape[0]
    count = -(-tokens * vocabulary * weight.itemsize // max(1, workspace_bytes)) or 1
    width = -(-vocabulary // count)
    if width > _ALIGNED:
        width = -(-width // _ALIGNED) * _ALIGNED
    return [(first, min(first + width, vocabulary)) for first in range(0, vocabulary, width)]


def _slices(block: Tensor) -> Iterator[slice]:
    """Return rows of the block, as many at a time as fill `_AT_ONCE`."""
    size = max(1, (_AT_ONCE if block.device.type == "cpu" else _ACCELERATOR_AT_ONCE) // block.shape[1])
    return (slice(start, start + size) for start in range(0, len(block), size))
