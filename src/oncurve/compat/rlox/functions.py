"""The functions of rlox 1.2 for language models, on NumPy arrays or tensors: advantages, KL divergences, GAE.

A tensor gives tensors, anything else NumPy arrays, as rlox returns them. The single-precision ones (`_f32`) compute in
float64 and round. Input that rlox takes without looking (NaN, arrays of other lengths) is an error here.

Source: rlox 1.2.0, the docstrings of its compiled functions.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from oncurve.advantages import group_advantages


def compute_group_advantages(rewards: Any) -> Any:
    """Return `(r - mean r) / std r` over one group: `(G,)` to `(G,)` float64; zeros where std < 1e-8 (population std,
    ddof 0).

    rlox's function of this name. A tensor gives a tensor, anything else a NumPy array. `oncurve.group_advantages` is
    the general one. Raises ValueError: not of one dimension, or not finite.
    """
    given = _one_row(rewards)
    return compute_batch_group_advantages(given if isinstance(rewards, Tensor) else given.numpy(), max(len(given), 1))


def compute_batch_group_advantages(rewards: Any, group_size: int) -> Any:
    """Return `compute_group_advantages` of every group of `group_size` adjacent rewards: `(M·G,)` to `(M·G,)` float64.

    Raises ValueError: not of one dimension, not finite, or no multiple of `group_size`.
    """
    given = _one_row(rewards)
    if group_size < 1 or len(given) % group_size:
        raise ValueError(f"expected rewards (M·{group_size},), groups one after another, got {tuple(given.shape)}")
    groups = torch.arange(len(given), device=given.device) // group_size
    alone = group_size == 1  # no siblings: its std is 0
    valid = torch.ones_like(given, dtype=torch.bool)
    advantages = torch.zeros_like(given) if alone else group_advantages(given, valid, groups, ddof=0, eps=0.0)
    return advantages if isinstance(rewards, Tensor) else advantages.numpy()


def _one_row(rewards: Any, what: str = "rewards") -> Tensor:
    """Return a row (M,) float64, without a gradient. Raises ValueError: not of one dimension, or not finite."""
    given = rewards.detach() if isinstance(rewards, Tensor) else torch.from_numpy(numpy.array(rewards, numpy.float64))
    if given.ndim != 1:
        raise ValueError(f"expected {what} (M,) of one dimension, got {tuple(given.shape)}")
    if not bool(given.isfinite().all()):
        raise ValueError(f"{what}: one is NaN or infinite")
    return given.to(torch.float64)


def compute_token_kl(log_probs_policy: Any, log_probs_ref: Any) -> float:
    """Return `Σ_t exp(log p_t) · (log p_t - log q_t)` over the tokens `(T,)` of one sequence; 0 for none.

    p and q are policy and reference. Of sampled tokens this is no estimate of the KL divergence, since each is weighted
    by its probability once more; `compute_token_kl_schulman` is one. Raises ValueError: other lengths, or not finite.
    """
    return float(_summed(_exact, log_probs_policy, log_probs_ref, None))


def compute_token_kl_schulman(log_probs_policy: Any, log_probs_ref: Any) -> float:
    """Return `Σ_t exp(d_t) - d_t - 1` with `d_t = log p_t - log q_t` over the tokens `(T,)` of one sequence, as rlox
    has it.

    k3 of `oncurve.kl` with policy and reference exchanged, and not bounded for large d. Raises ValueError: other
    lengths, or not finite.
    """
    return float(_summed(_schulman, log_probs_policy, log_probs_ref, None))


def compute_batch_token_kl(log_probs_policy: Any, log_probs_ref: Any, seq_len: int) -> Any:
    """Return `compute_token_kl` of each sequence of `seq_len` adjacent tokens: `(B·seq_len,)` to `(B,)` float64.

    Raises ValueError: other lengths, not finite, or no multiple of `seq_len`.
    """
    return _as_given(_summed(_exact, log_probs_policy, log_probs_ref, seq_len), log_probs_policy)


def compute_batch_token_kl_schulman(log_probs_policy: Any, log_probs_ref: Any, seq_len: int) -> Any:
    """Return `compute_token_kl_schulman` of each sequence of `seq_len` adjacent tokens: `(B·seq_len,)` to `(B,)`
    float64.

    Raises ValueError: other lengths, not finite, or no multiple of `seq_len`.
    """
    return _as_given(_summed(_schulman, log_probs_policy, log_probs_ref, seq_len), log_probs_policy)


def compute_token_kl_f32(log_probs_policy: Any, log_probs_ref: Any) -> float:
    """Return `compute_token_kl`, rounded to float32."""
    return float(numpy.float32(compute_token_kl(log_probs_policy, log_probs_ref)))


def compute_token_kl_schulman_f32(log_probs_policy: Any, log_probs_ref: Any) -> float:
    """Return `compute_token_kl_schulman`, rounded to float32."""
    return float(numpy.float32(compute_token_kl_schulman(log_probs_policy, log_probs_ref)))


def compute_batch_token_kl_f32(log_probs_policy: Any, log_probs_ref: Any, seq_len: int) -> Any:
    """Return `compute_batch_token_kl`, rounded to float32."""
    return _single(compute_batch_token_kl(log_probs_policy, log_probs_ref, seq_len))


def compute_batch_token_kl_schulman_f32(log_probs_policy: Any, log_probs_ref: Any, seq_len: int) -> Any:
    """Return `compute_batch_token_kl_schulman`, rounded to float32."""
    return _single(compute_batch_token_kl_schulman(log_probs_policy, log_probs_ref, seq_len))


def compute_gae(rewards: Any, values: Any, dones: Any, last_value: float, gamma: float, lam: float) -> tuple[Any, Any]:
    """Generalised advantages and returns of `(T,)` steps: `(advantages, returns)`, each `(T,)` float64.

        δ_t = r_t + γ V_{t+1} (1 - done_t) - V_t        A_t = δ_t + γ λ (1 - done_t) A_{t+1}        R_t = A_t + V_t

    with `V_T = last_value`. The same sum as `oncurve.advantages.gae`, which is for completions and without `dones`.
    Raises ValueError: other lengths, or not finite.
    """
    return compute_gae_batched(rewards, values, dones, [last_value], len(rewards), gamma, lam)


def compute_gae_batched(
    rewards: Any, values: Any, dones: Any, last_values: Any, n_steps: int, gamma: float, lam: float
) -> tuple[Any, Any]:
    """Return `compute_gae` of each of n adjacent rows of `n_steps` steps: `(n·n_steps,)` and last values `(n,)`.

    Raises ValueError: other lengths, or not finite.
    """
    r, v, done, last = (_one_row(each) for each in (rewards, values, dones, last_values))
    if not len(r) == len(v) == len(done) == len(last) * n_steps:
        raise ValueError(
            f"expected {len(last)} rows of n_steps = {n_steps}, "
            f"got {len(r)} rewards, {len(v)} values, {len(done)} dones"
        )
    shape = (len(last), n_steps)
    r, v, going = r.reshape(shape), v.reshape(shape), 1 - done.reshape(shape)
    following = torch.cat([v[:, 1:], last[:, None]], dim=1)
    delta = r + gamma * following * going - v
    advantages = torch.zeros_like(delta)
    after = torch.zeros_like(last)
    for step in reversed(range(n_steps)):
        after = delta[:, step] + gamma * lam * going[:, step] * after
        advantages[:, step] = after
    found = (advantages.reshape(-1), (advantages + v).reshape(-1))
    return _as_given(found[0], rewards), _as_given(found[1], rewards)


def compute_gae_batched_f32(
    rewards: Any, values: Any, dones: Any, last_values: Any, n_steps: int, gamma: float, lam: float
) -> tuple[Any, Any]:
    """Return `compute_gae_batched`, rounded to float32."""
    advantages, returns = compute_gae_batched(rewards, values, dones, last_values, n_steps, gamma, lam)
    return _single(advantages), _single(returns)


def _exact(policy: Tensor, reference: Tensor) -> Tensor:
    return policy.exp() * (policy - reference)


def _schulman(policy: Tensor, reference: Tensor) -> Tensor:
    distance = policy - reference
    return distance.expm1() - distance


def _summed(of_tokens: Callable[[Tensor, Tensor], Tensor], policy: Any, reference: Any, length: int | None) -> Tensor:
    """Return the sum of a value per token over each sequence of `length` tokens, or over all for None."""
    first, second = _one_row(policy, "log-probs"), _one_row(reference, "log-probs")
    if len(first) != len(second):
        raise ValueError(f"expected equally many log-probs of reference and policy, got {len(second)}, {len(first)}")
    if length is None:
        return of_tokens(first, second).sum()
    if length < 1 or len(first) % length:
        raise ValueError(f"expected sequences of seq_len = {length} one after another, got {len(first)} log-probs")
    return of_tokens(first, second).reshape(-1, length).sum(1)


def _as_given(found: Tensor, like: Any) -> Any:
    return found if isinstance(like, Tensor) else found.numpy()


def _single(found: Any) -> Any:
    return found.to(torch.float32) if isinstance(found, Tensor) else found.astype(numpy.float32)
