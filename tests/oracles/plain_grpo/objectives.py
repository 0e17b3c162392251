"""Policy objectives: the losses of the trained tokens of one completion, one function per objective."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oracles.plain_grpo.settings import FAR, PlainConfig


def surrogate(ratio: Tensor, advantage: float, config: PlainConfig) -> Tensor:
    """-min(ρ Â, clip(ρ, 1-ε_low, 1+ε_high) Â); for Â < 0 never above -c Â (dual clip); ρ at most δ in the free term."""
    free = ratio if config.delta is None else torch.clamp(ratio, max=config.delta)
    low, high = config.clip
    clipped = torch.clamp(ratio, 1.0 - low, 1.0 + high)
    loss = torch.maximum(-advantage * free, -advantage * clipped)
    if advantage < 0 and config.dual_clip is not None:
        loss = torch.minimum(loss, torch.full_like(loss, -config.dual_clip * advantage))
    return loss


def clipped(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """One ratio per token."""
    ratios = [torch.exp(torch.clamp(new - before, -FAR, FAR)) for new, before in zip(lp, old, strict=True)]
    return [surrogate(ratio, advantage, config) for ratio in ratios]


def sequence_product(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """ρ_i = exp Σ_t log ρ_it: one loss for the whole completion, spread evenly over its tokens."""
    if not lp:
        return []
    log_ratio = torch.stack([new - before for new, before in zip(lp, old, strict=True)]).sum()
    whole = surrogate(torch.exp(torch.clamp(log_ratio, -FAR, FAR)), advantage, config)
    return [whole / len(lp)] * len(lp)


def gspo(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """ρ_i = exp(1/|o| Σ_t log ρ_it): one loss for the whole completion, carried by each of its tokens."""
    if not lp:
        return []
    mean = torch.stack([new - before for new, before in zip(lp, old, strict=True)]).mean()
    return [surrogate(torch.exp(torch.clamp(mean, -FAR, FAR)), advantage, config)] * len(lp)


def gmpo(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """(Π_t |min(ρ_t Â, clip(ρ_t) Â)|)^(1/|o|), with the sign of Â; the clip is from e^-ε_low to e^ε_high."""
    if not lp:
        return []
    low, high = config.clip
    whole = torch.ones((), dtype=torch.float64)
    for new, before in zip(lp, old, strict=True):
        ratio = torch.exp(new - before)
        clipped = torch.clamp(ratio, math.exp(-low), math.exp(high))
        whole = whole * (torch.minimum(ratio, clipped) if advantage > 0 else torch.maximum(ratio, clipped))
    return [-advantage * whole ** (1.0 / len(lp))] * len(lp)


def cispo(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """-sg(clip(ρ)) Â log π."""
    low, high = config.clip
    ratios = [math.exp(float(new.detach() - before)) for new, before in zip(lp, old, strict=True)]
    return [-min(max(r, 1.0 - low), 1.0 + high) * advantage * new for r, new in zip(ratios, lp, strict=True)]


def sapo(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """-Â 4/τ σ(τ (ρ - 1)), τ by the sign of Â."""
    tau = config.tau_positive if advantage > 0 else config.tau_negative
    ratios = [torch.exp(new - before) for new, before in zip(lp, old, strict=True)]
    return [-advantage * (4.0 / tau) / (1.0 + torch.exp(-tau * (ratio - 1.0))) for ratio in ratios]


def dppo(lp: list[Tensor], sampler: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """-sg(min(π/μ, c)) Â log π, and 0 for a token that left the trust region and is pushed further away."""
    losses = []
    for new, recorded in zip(lp, sampler, strict=True):
        p, q = math.exp(float(new.detach())), math.exp(float(recorded))
        binary_kl = q * math.log(q / p) + (1.0 - q) * math.log((1.0 - q) / (1.0 - p))
        far = (abs(p - q) if config.divergence == "tv" else binary_kl) > config.trust_region
        away = p > q if advantage > 0 else p < q
        weight = 0.0 if far and away else min(p / q, config.max_ratio)
        losses.append(-weight * advantage * new)
    return losses


def reinforce(lp: list[Tensor], old: list[Tensor], advantage: float, config: PlainConfig) -> list[Tensor]:
    """-Â log π, without a ratio."""
    return [-advantage * new for new in lp]


OBJECTIVES: dict[str, Callable[[list[Tensor], list[Tensor], float, PlainConfig], list[Tensor]]] = {
    each.__name__: each for each in (clipped, sequence_product, gspo, gmpo, cispo, sapo, dppo, reinforce)
}
