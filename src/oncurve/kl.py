"""KL divergence from the reference: estimators whose *value* and whose *gradient* are two choices.

With d = log π_θ(o_t) - log π_ref(o_t) at a sampled token (k1, k2, k3: J. Schulman,
http://joschu.net/blog/kl-approx.html; k3 in the loss: DeepSeekMath, arXiv:2402.03300, eq. 4):

    name      value                                   ∂/∂log π_θ                    in the loss, on-policy
    k1        d                                       1                             no effect: E[∇log π] = 0
    abs       |d|                                     sign d
    k2        d²/2                                    d                             exact gradient of KL(π_θ||π_ref)
    k3        e⁻ᵈ + d - 1                             1 - e⁻ᵈ                       biased: that of KL(π_ref||π_θ)
    full      Σ_v π_θ(v) (log π_θ(v) - log π_ref(v))  exact                         exact, no sampling noise
    k1+ abs+ k3+   value of k1, abs, k3               d (that of k2)                exact gradient
    ratio_k3  ρ·(e⁻ᵈ + d - 1), ρ = π_θ/π_old          ρ·d (through ρ and k3)        exact, on- and off-policy

All are per token, `(B, T)`, in nats, and 0 where policy and reference agree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from oncurve.base.errors import ConfigError, suggest
from oncurve.base.hints import kind_for
from oncurve.base.imports import locate, looking
from oncurve.components import Equation, check_per_token, misstated

_FAR = 20.0
"""Distances beyond this are not exponentiated: e²⁰ ≈ 4.9e8 is finite in float32, and so is its slope."""

KL_NEEDS = frozenset({"full_kl"})
"""The token statistics next to the log-probs that an estimator can need."""


def k1(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `d`: unbiased, may be negative. Its gradient, 1, has expectation 0: as a loss it has no effect
    on-policy.
    """
    return logprobs - ref_logprobs


def absolute(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `|d|`, gradient `sign d` (0 at d = 0)."""
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `d²/2`, gradient `d`: a biased value, but in expectation the exact gradient of KL(π_θ||π_ref)."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `e⁻ᵈ + d - 1` >= 0, gradient `1 - e⁻ᵈ`: unbiased value of little variance.

    Below d = -20, where `e⁻ᵈ` would overflow, the function continues along its tangent: finite, with the sign and the
    slope that it has there. If the value were clamped, a token far off would have gradient 0; if only the exponent
    were, its gradient would change sign (to +1). Above d = 20 the function is a straight line already, to 2e-9.
    """
    x = ref_logprobs - logprobs
    near = x.detach().clamp(max=_FAR)  # of which a bound is chosen, so that the gradient at it is that of x
    tangent = math.exp(_FAR) * torch.relu(x - _FAR)
    return torch.expm1(torch.where(near == x, x, near)) + tangent - x


def ratio_k3(
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"],
    old_logprobs: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """Return `ρ·k3`, `ρ = π_θ/π_old`, with the gradient through both factors: `ρ·(k3 + 1 - e⁻ᵈ) = ρ·d`.

    Value and gradient are unbiased for KL(π_θ||π_ref) where tokens come from π_old. `old_logprobs` None means that
    they come from π_θ itself: ρ is 1 and has a gradient. The gradient is taken as `ρ·d`, not as the sum of its two
    parts: these cancel (at d = -15 float32 has no digit left), and beyond d = -20, where k3 is a straight line and ρ is
    not, their sum would change sign.
    Source: DeepSeek-V3.2, arXiv:2512.02556, "Unbiased KL Estimate".
    """
    old = logprobs if old_logprobs is None else old_logprobs
    ratio = (logprobs - old).detach().clamp(-_FAR, _FAR).exp()
    return straight_through(ratio * k3(logprobs, ref_logprobs), gradient_of=ratio * k2(logprobs, ref_logprobs))


def straight_through(value: Float[Tensor, "*shape"], gradient_of: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a tensor with the value of `value` and the gradient of `gradient_of`."""
    return value.detach() + (gradient_of - gradient_of.detach())


def full_kl_from_logits(
    logits: Float[Tensor, "*shape V"], ref_logits: Float[Tensor, "*shape V"], temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Return `KL(π_θ||π_ref) = Σ_v π_θ(v) (log π_θ(v) - log π_ref(v))` over the vocabulary, both tempered by
    `temperature`.

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
    """An estimator: its computation, what it needs, and its equation for `config explain`.

    from_samples   `(logprobs, ref_logprobs, old_logprobs)` to the value; None for the exact sum over the vocabulary,
                   which comes as a token statistic (`needs` says so)
    equation       the value in terms of d = log π_θ - log π_ref and ρ = π_θ/π_old
    needs          token statistics next to the log-probs: {"full_kl"} or nothing
    note           what the plan says of it where it is in the loss, after its name
    """

    from_samples: Sampled | None
    equation: str | None = None
    needs: frozenset[str] = frozenset()
    note: str | None = None

    def describe(self) -> Equation:
        """Return the estimator's equation and its letters; of one without an equation, that it has none."""
        if self.equation is None:
            return Equation("described nowhere: the estimator has no equation")
        letters = {"d": "log π_θ - log π_ref of token t", "ρ": "π_θ/π_old of token t"}
        value = Equation(self.equation)
        return Equation(self.equation, {letter: said for letter, said in letters.items() if value.mentions(letter)})


def _on_samples(estimate: Callable[[Tensor, Tensor], Tensor]) -> Sampled:
    return lambda logprobs, ref_logprobs, _: estimate(logprobs, ref_logprobs)


def _with_gradient_of_k2(estimate: Callable[[Tensor, Tensor], Tensor]) -> Sampled:
    return lambda logprobs, ref_logprobs, _: straight_through(
        estimate(logprobs, ref_logprobs), k2(logprobs, ref_logprobs)
    )


KL_KINDS: dict[str, Estimator] = {
    "k1": Estimator(
        _on_samples(k1),
        "d",
        note="in the loss has no effect on-policy: the expectation of its gradient is 0. k2 and k3+ have the exact "
        "gradient of the KL, k3 a biased one",
    ),
    "abs": Estimator(_on_samples(absolute), "|d|"),
    "k2": Estimator(_on_samples(k2), "d²/2"),
    "k3": Estimator(_on_samples(k3), "e⁻ᵈ + d - 1"),
    "full": Estimator(
        None,
        "Σ_v π_θ(v) (log π_θ(v) - log π_ref(v)), exact, over the vocabulary",
        needs=frozenset({"full_kl"}),
        note="compares whole distributions at every token: slower, without sampling noise",
    ),
    "k1+": Estimator(_with_gradient_of_k2(k1), "d, with the gradient of d²/2"),
    "abs+": Estimator(_with_gradient_of_k2(absolute), "|d|, with the gradient of d²/2"),
    "k3+": Estimator(_with_gradient_of_k2(k3), "e⁻ᵈ + d - 1, with the gradient of d²/2"),
    "ratio_k3": Estimator(ratio_k3, "ρ (e⁻ᵈ + d - 1), with the gradient through ρ too"),
}


def estimator_named(name: str) -> Estimator:
    """Return the estimator of `KL_KINDS`, or the one that a path such as `"my_kl.py:chi2"` names. Raises
    ConfigError.
    """
    if looking() and ":" in name:
        return Estimator(_on_samples(k3), f"{name}, not imported")
    found: object = locate(name) if ":" in name else KL_KINDS.get(name)
    if found is None:
        near = kind_for("kl", name) or suggest(name, KL_KINDS)
        raise ConfigError(f"expected one of {', '.join(KL_KINDS)}, or 'module:name'{near}")
    if not isinstance(found, Estimator):
        raise ConfigError(f"{name} is not an oncurve.kl.Estimator; it is {found!r:.100}")
    return found


def check_estimator(name: str) -> str | None:
    """Return what is wrong with the estimator that `name` names, or with what it states of itself, or None."""
    try:
        estimator = estimator_named(name)
    except ConfigError as error:
        return str(error)
    problem = misstated("needs", estimator.needs, KL_NEEDS)
    if problem is None and estimator.from_samples is None and "full_kl" not in estimator.needs:
        problem = "from_samples is None, so needs must hold 'full_kl'"
    return None if problem is None else f"{name}: {problem}"


def kl_value(
    estimator: str,
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"] | None,
    old_logprobs: Float[Tensor, "*shape"] | None = None,
    full_kl: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """Return kL per token by the named estimator; its autograd gradient with respect to `logprobs` is that of the table
    above.

    logprobs, ref_logprobs, old_logprobs, full_kl   all of one shape, `(B, T)` in a batch; so is the result
    old_logprobs   for `ratio_k3` only; None: the tokens are the policy's own
    full_kl        for `full` only: the exact divergence (`full_kl_from_logits`), returned as it is

    Raises KeyError: no such estimator. ValueError: log-probs or statistics that it needs are missing. ConfigError: an
    estimator from elsewhere returned something else.
    """
    if ":" not in estimator and estimator not in KL_KINDS:
        raise KeyError(f"no KL estimator {estimator!r}; there are: {', '.join(KL_KINDS)}")
    from_samples = estimator_named(estimator).from_samples
    if from_samples is None:
        if full_kl is None:
            raise ValueError(f"the KL estimator {estimator!r} needs full_kl, which is absent")
        return full_kl
    if ref_logprobs is None:
        raise ValueError(f"the KL estimator {estimator!r} needs ref_logprobs, which are absent")
    found: object = from_samples(logprobs, ref_logprobs, old_logprobs)
    return check_per_token(found, logprobs.shape, "kl.estimator", f"{estimator} must return one value per token")
