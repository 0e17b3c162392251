"""The optimizer, formula by formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class PlainAdamW:
    """Decoupled weight decay Adam (arXiv:1711.05101) on a list of parameters, formula by formula."""

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    skip_empty: bool = False
    steps: int = 0
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
        """Update `parameters` in place; returns the norm of all gradients before clipping.

        Clipping is g · min(1, max / (norm + 1e-6)), torch's rule. With `skip_empty` a gradient of 0 changes nothing.
        """
        norm = math.sqrt(math.fsum(float((g.double() ** 2).sum()) for g in gradients))
        if self.skip_empty and all(bool((g == 0).all()) for g in gradients):
            return norm
        shrink = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + 1e-6))
        if not self.first:
            self.first = [torch.zeros_like(p) for p in parameters]
            self.second = [torch.zeros_like(p) for p in parameters]
        self.steps += 1
        for p, g, m, v in zip(parameters, gradients, self.first, self.second, strict=True):
            g = g * shrink
            m.copy_(self.beta1 * m + (1 - self.beta1) * g)
            v.copy_(self.beta2 * v + (1 - self.beta2) * g * g)
            m_hat, v_hat = m / (1 - self.beta1**self.steps), v / (1 - self.beta2**self.steps)
            p.mul_(1 - self.learning_rate * self.weight_decay)
            p.sub_(self.learning_rate * m_hat / (v_hat.sqrt() + self.epsilon))
        return norm
