"""KL divergence from the reference: estimators whose *value* and whose *gradient* are two choices.

With d = log π_θ(o_t) - log π_ref(o_t) at a sampled token (k1, k2, k3: J. Schulman,
http://joschu.net/blog/kl-approx.html; k3 in the loss: DeepSeekMath, arXiv:2402.03300, eq. 4):

    name      value                                   ∂/∂log π_θ                    in the loss, on-policy
    k1        d                                       1                             pulls nowhere: E[∇log π] = 0
    abs       |d|                                     sign d
    k2        d²/2                                    d                             exact gradient of KL(π_θ||π_ref)
    k3        e⁻ᵈ + d - 1                             1 - e⁻ᵈ                       biased: that of KL(π_ref||π_θ)
    full      Σ_v π_θ(v) (log π_θ(v) - log π_ref(v))  exact                         exact, no sampling noise
    k1+ abs+ k3+   value of k1, abs, k3               d (that of k2)                exact gradient
    ratio_k3  ρ·(e⁻ᵈ + d - 1), ρ = π_θ/π_old          ρ·d (through ρ and k3)        exact, on- and off-policy

All are per token, `(B, T)`, in nats, and 0 where policy and reference agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "KL_KINDS",
    "Estimator",
    "EstimatorName",
    "absolute",
    "full_kl_from_logits",
    "k1",
    "k2",
    "k3",
    "kl_value",
    "ratio_k3",
    "straight_through",
]

_FAR = 20.0
"""Distances beyond this are not exponentiated: e²⁰ ≈ 4.9e8 is finite in float32, and so is its slope."""

EstimatorName = Literal["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+", "ratio_k3"]


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d`: unbiased, may be negative. Its gradient, 1, has expectation 0: as a loss it pulls nowhere on-policy."""
    return logprobs - ref_logprobs


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`|d|`, gradient `sign d` (0 at d = 0)."""
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d²/2`, gradient `d`: a biased value, but in expectation the exact gradient of KL(π_θ||π_ref)."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`e⁻ᵈ + d - 1` >= 0, gradient `1 - e⁻ᵈ`: unbiased value of little variance.

    Below d = -20, where `e⁻ᵈ` would overflow, the function goes on along its tangent: finite, with the sign and the
    slope it had there. Clamping the value would leave a runaway token without any pull back, clamping only the
    exponent would turn the pull's sign (to +1). Above d = 20 it is a straight line already, to 2e-9.
    """
    x = ref_logprobs - logprobs
    tangent = math.exp(_FAR) * torch.relu(x - _FAR)
    return torch.expm1(x.clamp(max=_FAR)) + tangent - x


def ratio_k3(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor | None = None) -> Tensor:
    """`ρ·k3`, `ρ = π_θ/π_old`, with the gradient through both factors: `ρ·(k3 + 1 - e⁻ᵈ) = ρ·d`.

    Value and gradient are unbiased for KL(π_θ||π_ref) where tokens come from π_old. `old_logprobs` None means that
    they come from π_θ itself: ρ is 1 and its gradient alive. The gradient is taken as `ρ·d`, not as the sum of its
    two parts: these cancel (at d = -15 float32 has no digit left), and beyond d = -20, where k3 goes on straight
    while ρ does not, their sum would turn its sign.
    Source: DeepSeek-V3.2, arXiv:2512.02556, "Unbiased KL Estimate".
    """
    old = logprobs if old_logprobs is None else old_logprobs
    ratio = (logprobs - old).detach().clamp(-_FAR, _FAR).exp()
    return straight_through(ratio * k3(logprobs, ref_logprobs), gradient_of=ratio * k2(logprobs, ref_logprobs))


def straight_through(value: Tensor, gradient_of: Tensor) -> Tensor:
    """A tensor with the value of `value` and the gradient of `gradient_of`."""
    return value.detach() + (gradient_of - gradient_of.detach())


def full_kl_from_logits(logits: Tensor, ref_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """`KL(π_θ||π_ref) = Σ_v π_θ(v) (log π_θ(v) - log π_ref(v))` over the vocabulary, both tempered by `temperature`.

    logits, ref_logits (..., V)   returns (...), float32 at least; the gradient through `logits` is exact.
    A token that the policy rules out (logit -inf) contributes 0; one that only the reference rules out makes it +inf.
    Raises ValueError where `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0 to have a distribution, got {temperature}")
    logprobs, ref_logprobs = (
        torch.log_softmax((z if z.dtype == torch.float64 else z.float()) / temperature, dim=-1)
        for z in (logits, ref_logits)
    )
    difference = torch.where(logprobs.isneginf(), 0.0, logprobs - ref_logprobs)
    return (logprobs.exp() * difference).sum(-1)


Sampled = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Estimator:
    """How an estimator is computed, what it needs, and what to know before putting it into the loss.

    `from_samples` maps `(logprobs, ref_logprobs, old_logprobs)` to the value; None for the exact sum over the
    vocabulary, which comes as a stream (`needs` says so). `warning` is for the plan that is printed before training.
    """

    from_samples: Sampled | None
    needs: frozenset[str] = frozenset()
    warning: str | None = None


def _on_samples(estimate: Callable[[Tensor, Tensor], Tensor]) -> Sampled:
    return lambda logprobs, ref_logprobs, _: estimate(logprobs, ref_logprobs)


def _pulling_like_k2(estimate: Callable[[Tensor, Tensor], Tensor]) -> Sampled:
    return lambda logprobs, ref_logprobs, _: straight_through(
        estimate(logprobs, ref_logprobs), k2(logprobs, ref_logprobs)
    )


KL_KINDS: dict[str, Estimator] = {
    "k1": Estimator(
        _on_samples(k1),
        warning="k1 in the loss pulls nowhere: its expected gradient is 0 on-policy. Use k2, k3 or k3+ to hold the "
        "policy near the reference.",
    ),
    "abs": Estimator(_on_samples(absolute)),
    "k2": Estimator(_on_samples(k2)),
    "k3": Estimator(_on_samples(k3)),
    "full": Estimator(None, needs=frozenset({"full_kl"})),
    "k1+": Estimator(_pulling_like_k2(k1)),
    "abs+": Estimator(_pulling_like_k2(absolute)),
    "k3+": Estimator(_pulling_like_k2(k3)),
    "ratio_k3": Estimator(ratio_k3),
}


def kl_value(
    estimator: str,
    logprobs: Tensor,
    ref_logprobs: Tensor | None,
    old_logprobs: Tensor | None = None,
    full_kl: Tensor | None = None,
) -> Tensor:
    """KL per token by the named estimator; its autograd gradient with respect to `logprobs` is the one tabled above.

    logprobs, ref_logprobs, old_logprobs, full_kl   any one shape, `(B, T)` in a batch; so is the result
    old_logprobs   for `ratio_k3` only; None: the tokens are the policy's own
    full_kl        for `full` only: the exact divergence (`full_kl_from_logits`), returned as it is

    Raises KeyError: no such estimator. ValueError: the stream it needs is missing.
    """
    if estimator not in KL_KINDS:
        raise KeyError(f"no KL estimator {estimator!r}; there are: {', '.join(KL_KINDS)}")
    from_samples = KL_KINDS[estimator].from_samples
    if from_samples is None:
        if full_kl is None:
            raise ValueError(f"the KL estimator {estimator!r} needs the stream full_kl, which is absent")
        return full_kl
    if ref_logprobs is None:
        raise ValueError(f"the KL estimator {estimator!r} needs ref_logprobs, which are absent")
    return from_samples(logprobs, ref_logprobs, old_logprobs)
