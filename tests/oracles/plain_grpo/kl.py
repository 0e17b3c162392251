"""Estimators of the KL to the reference: one token's term of the loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.plain_grpo.settings import FAR


def k3(d: Tensor) -> Tensor:
    """e^-d + d - 1, and a straight line of the same slope beyond |d| = 20."""
    if abs(float(d.detach())) <= FAR:
        return torch.exp(-d) + d - 1.0
    edge = math.copysign(FAR, float(d.detach()))
    return (math.exp(-edge) + edge - 1.0) + (1.0 - math.exp(-edge)) * (d - edge)


def kl_term(kind: str, lp: Tensor, ref: Tensor, old: Tensor, log_p: Tensor, log_ref: Tensor) -> Tensor:
    """One token's KL. `lp, ref, old`: at the sampled token, `()`; `log_p, log_ref`: over the vocabulary, `(V,)`."""
    d = lp - ref
    if kind == "full":
        return (log_p.exp() * (log_p - log_ref)).sum()
    if kind == "ratio_k3":
        ratio = torch.exp(torch.clamp(lp - old, -FAR, FAR))
        if abs(float(d.detach())) <= FAR:
            return ratio * k3(d)
        return (ratio * k3(d)).detach() + (ratio * d).detach() * (lp - lp.detach())  # ∇(ρ·k3) = ρ·d, said directly
    if kind.endswith("+"):  # the value of one estimator, the gradient of k2
        value, pull = kl_term(kind[:-1], lp, ref, old, log_p, log_ref), d * d / 2.0
        return value.detach() + pull - pull.detach()
    return {"k1": lambda: d, "abs": lambda: d.abs(), "k2": lambda: d * d / 2.0, "k3": lambda: k3(d)}[kind]()
