"""Importance ratios, of tokens and of completions, and what an objective logs of them."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oncurve.ops import clamped_ratio
from oncurve.types import TokenStats, TrainBatch


def token_log_ratio(
    logprobs: Float[Tensor, "B T"], old_logprobs: Float[Tensor, "B T"] | None, loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return `log ρ = log π_θ - log π_old` where `loss_mask`, else 0. `(B, T)`, in the dtype of `logprobs`.

    `old_logprobs` None: `log π_θ - sg(log π_θ)`, which is 0 with gradient 1.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs.detach().to(logprobs.dtype)
    return torch.where(loss_mask, logprobs - old, 0.0)


def sequence_log_ratio(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Return `log ρ_i = Σ_t log ρ_it` over the trained tokens of each completion: `(B, T)` to `(B, 1)`."""
    return torch.where(loss_mask, log_ratio, 0.0).sum(1, keepdim=True)


def trained_advantages(stats: TokenStats, batch: TrainBatch) -> Float[Tensor, "B T"]:
    """Return the batch's advantages `(B, T)` where `loss_mask`, else 0, in the dtype of the log-probs.

    Raises ValueError where the batch has none.
    """
    if batch.advantages is None:
        raise ValueError("an objective needs the batch's advantages: batch.with_advantages(advantage(batch)) first")
    return torch.where(batch.loss_mask, batch.advantages.to(stats.logprobs.dtype), 0.0)


MEAN_ADVANTAGE = {"Â_i": "the mean of Â_it over the tokens of completion i"}
"""How `config explain` says it."""


def mean_advantage(advantages: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Return Â_i, the mean advantage of a completion's trained tokens, 0 without any: `(B, T)` to `(B, 1)`."""
    return torch.where(loss_mask, advantages, 0.0).sum(1, keepdim=True) / trained_lengths(loss_mask)


def trained_lengths(loss_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B 1"]:
    """Return |o_i|, the trained tokens of each completion, 1 at least: `(B, T)` to `(B, 1)`."""
    return loss_mask.sum(1, keepdim=True).clamp(min=1)


def ratio_stats(
    log_ratio: Float[Tensor, "B _"],
    loss: Float[Tensor, "B T"],
    counted: Mapping[str, Bool[Tensor, "B _"] | Float[Tensor, "B _"]],
    by_token: Float[Tensor, "B T"] | None = None,
) -> dict[str, Float[Tensor, "B T"]]:
    """Return what an objective with a ratio logs, `(B, T)` each, detached: its loss, its ratio, and the metrics
    `counted`.

    `log_ratio` and `counted` are `(B, T)`, or `(B, 1)` of a whole completion: then `by_token` has log ρ of each token,
    of which the KL is estimated. Of a bool the metric is the share of tokens where it is True.
    """
    ratio = clamped_ratio(log_ratio.detach().expand_as(loss))
    moved = (log_ratio if by_token is None else by_token).detach()
    return {
        "policy/objective_loss": loss.detach(),
        "policy/ratio": ratio,
        "policy/ratio_max": ratio,
        "policy/kl_old": clamped_ratio(moved) - 1 - moved,
        **{name: values.detach().to(loss.dtype).expand_as(loss) for name, values in counted.items()},
    }
