"""Tensor functions that all rooms share: log-probabilities, entropy, means under a mask, ratios, sums over groups.

All are pure, differentiable unless said otherwise, and compute in float32 at least: bfloat16 and float16 inputs are
raised to float32, float64 stays float64.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor
from torch.autograd.function import once_differentiable

EXPONENT_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before `exp`: e²⁰ ≈ 4.9e8 is finite in every dtype but float16."""


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `x` in float32, or as it is where it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def in_rows(column: Float[Tensor, "N"], slots: Int[Tensor, "N"], shape: tuple[int, int]) -> Float[Tensor, "B T"]:
    """Return numbers of all tokens `(N,)` as `(B, T)`, 0 where there is none; `slots` are `TrainBatch.slots`."""
    return column.new_zeros(shape[0] * shape[1]).index_copy(0, slots, column).view(shape)


def scaled_log_softmax(logits: Float[Tensor, "*shape V"], temperature: float = 1.0) -> Float[Tensor, "*shape V"]:
    """Return log-probabilities of the tempered distribution, `log softmax(z / τ)`. Shapes `(..., V)` to `(..., V)`.

    The sampler draws from this distribution, so the log-probs of sampler and learner are equal by construction.
    Raises ValueError where `temperature` is not positive (greedy decoding has no density to train on).
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0 to have log-probabilities, got {temperature}")
    scaled = at_least_float32(logits)
    return torch.log_softmax(scaled if temperature == 1.0 else scaled / temperature, dim=-1)


def token_logprobs(
    logits: Float[Tensor, "*shape V"], ids: Int[Tensor, "*shape"], temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Return log-probability of each given token, `log π(id) = z_id/τ - log Σ_v exp(z_v/τ)`.

    logits (..., V)   ids (...) int64   returns (...)

    Raises ValueError: `temperature` <= 0, or shapes that do not fit.
    """
    _check_ids(logits, ids)
    return scaled_log_softmax(logits, temperature).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


class _TokenLogprobs(torch.autograd.Function):
    """`token_logprobs`, with the table `(n, V)` that they are read from; the gradient is made in one buffer.

    ∂ log π(id) / ∂z_v = ([v = id] - π(v)) / τ. Autograd makes three `(n, V)` tensors of this; one is enough.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        table = scaled_log_softmax(logits, temperature)
        ctx.temperature = temperature
        ctx.save_for_backward(table, ids)
        ctx.mark_non_differentiable(table)
        return table.gather(-1, ids.unsqueeze(-1)).squeeze(-1), table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        table, ids = ctx.saved_tensors
        scaled = (gradient / ctx.temperature).unsqueeze(-1)
        return table.exp().mul_(-scaled).scatter_add_(-1, ids.unsqueeze(-1), scaled), None, None


def token_logprobs_and_table(
    logits: Float[Tensor, "N V"], ids: Int[Tensor, "N"], temperature: float = 1.0
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N V"]]:
    """Return `token_logprobs` of `(n, V)` logits, and the log-probabilities `(n, V)` of all tokens, which have no
    gradient.

    Values are the same bits as those of `token_logprobs`; the gradient is equal to rounding and needs a third of the
    memory. It can be taken once (no second derivatives). The table is for statistics, without another pass.

    Raises ValueError: `temperature` <= 0, or shapes that do not fit.
    """
    _check_ids(logits, ids)
    raised = at_least_float32(logits)
    measured: tuple[Tensor, Tensor] = _TokenLogprobs.apply(raised, ids, temperature)  # type: ignore[no-untyped-call]
    return measured


def _check_ids(logits: Tensor, ids: Tensor) -> None:
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"logits {tuple(logits.shape)} need ids {tuple(logits.shape[:-1])}, got {tuple(ids.shape)}")


def entropy(logits: Float[Tensor, "*shape V"], temperature: float = 1.0) -> Float[Tensor, "*shape"]:
    """Return entropy in nats of the tempered distribution, `H = -Σ_v π(v) log π(v)`. Shapes `(..., V)` to `(...)`.

    A token ruled out by a logit of -inf contributes 0 (the limit of p log p), in value and in gradient.
    """
    return entropy_of_logprobs(scaled_log_softmax(logits, temperature))


def entropy_of_logprobs(logprobs: Float[Tensor, "*shape V"]) -> Float[Tensor, "*shape"]:
    """Return `entropy` from the log-probabilities `(..., V)` of all tokens, where they are known already."""
    finite = logprobs.clamp(min=torch.finfo(logprobs.dtype).min)  # 0 · -inf would be NaN
    return -(logprobs.exp() * finite).sum(-1)


def masked_mean(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], dim: int | None = None
) -> Float[Tensor, "..."]:
    """Mean of the elements where `mask`, `Σ m·x / Σ m`, over `dim` (all dimensions when None); 0 where none is.

    What stands where `mask` is False, NaN included, changes neither value nor gradient.
    """
    kept = mask.bool()
    return torch.where(kept, x, torch.zeros_like(x)).sum(dim) / kept.sum(dim).clamp(min=1)


def clamped_ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return probability ratio `ρ = exp(clamp(log ρ, ±20))`, whose gradient is `ρ` on both sides of the clamp.

    Only the *value* is clamped. A plain clamp has gradient 0 beyond its bounds, so nothing would pull back a ratio that
    has grown to e²¹ under a negative advantage.
    """
    clamped = log_ratio.detach().clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    return (clamped + (log_ratio - log_ratio.detach())).exp()


def clip(x: Float[Tensor, "*shape"], low: float = -torch.inf, high: float = torch.inf) -> Float[Tensor, "*shape"]:
    """Return `min(max(x, low), high)`, whose gradient is 1 from `low` to `high`, both included, and 0 beyond.

    `Tensor.clamp` has the gradient 0 at a bound from torch 2.14 on, and 1 before: a clip of width 0 at ρ = 1 would
    halve the gradient of the surrogate.
    """
    clipped = x.detach().clamp(low, high)
    return torch.where(clipped == x, x, clipped)


def segment_sum(values: Num[Tensor, "B"], group_ids: Int[Tensor, "B"], groups: int) -> Num[Tensor, "{groups}"]:
    """Sum of the rows of each group: `(B,)` values with group ids in `0..groups-1` to `(groups,)`; 0 for no rows."""
    return values.new_zeros(groups).index_add(0, group_ids, values)


def segment_count(mask: Bool[Tensor, "B"], group_ids: Int[Tensor, "B"], groups: int) -> Int[Tensor, "{groups}"]:
    """Return how many rows of each group are True in `mask` `(B,)`: `(groups,)` int64."""
    return segment_sum(mask.to(torch.int64), group_ids, groups)


def segment_mean(
    values: Float[Tensor, "B"], group_ids: Int[Tensor, "B"], groups: int, mask: Bool[Tensor, "B"] | None = None
) -> Float[Tensor, "{groups}"]:
    """Mean of the (masked) rows of each group, `(B,)` to `(groups,)`; 0 for a group with no such row."""
    kept = torch.ones_like(group_ids, dtype=torch.bool) if mask is None else mask
    total = segment_sum(torch.where(kept, values, torch.zeros_like(values)), group_ids, groups)
    return total / segment_count(kept, group_ids, groups).clamp(min=1)


def segment_max(values: Float[Tensor, "B"], group_ids: Int[Tensor, "B"], groups: int) -> Float[Tensor, "{groups}"]:
    """Return largest of each group's `(B,)` values, `(groups,)`; -inf for no rows. Floating point only."""
    return values.new_full((groups,), -torch.inf).scatter_reduce(0, group_ids, values, "amax")


def segment_min(values: Float[Tensor, "B"], group_ids: Int[Tensor, "B"], groups: int) -> Float[Tensor, "{groups}"]:
    """Return smallest of each group's `(B,)` values, `(groups,)`; +inf for no rows. Floating point only."""
    return values.new_full((groups,), torch.inf).scatter_reduce(0, group_ids, values, "amin")
