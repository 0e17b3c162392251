"""An engine whose sampler is not the learner: it samples from softmax((logits + s · noise) / temperature).

The noise is standard normal, one number per token of the vocabulary, drawn again at every position: a sampler of low
precision, made as strong as wanted. The log-probs that it records are those of the distribution that it samples from,
as every engine's must be. Evaluations, which bring their own sampling settings, are not disturbed.

The noise is a function of the position's uniform, so a resumed run draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from oncurve.models import CausalModel, DecodeRequest, LocalWeights, Weights
from oncurve.randomness import uniform_at
from oncurve.rollout import EngineBase, LocalEngine, OnGroup, RolloutEngine, Sampling
from oncurve.types import Group, Prompt

__all__ = ["Disturbed", "disturbed_logits"]


class Disturbed(LocalEngine):
    """The settings: `kind = "bench.science.disturbed:Disturbed"`."""

    size: float = Field(default=0.0, ge=0)
    """s, the standard deviation of the noise on a logit; at 0 the engine is the local one, and exact."""

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Only without noise the recorded log-probs are the learner's."""
        return self.size == 0

    def build(self, sampling: Sampling, tokenizer: Any, eos_ids: Sequence[int], seed: int) -> RolloutEngine:
        """The local engine, whose training rollouts are disturbed."""
        return _Engine(super().build(sampling, tokenizer, eos_ids, seed), self.size)


def disturbed_logits(logits: Tensor, uniforms: Tensor, size: float) -> Tensor:
    """`logits (n, V)` plus `size` times noise that is a function of the rows' `uniforms (n,)` in (0, 1)."""
    keys = (uniforms.double() * 2.0**53).long()
    drawn = uniform_at(keys[:, None], torch.arange(logits.shape[1], device=logits.device))
    return logits + size * torch.special.ndtri(drawn).to(logits.dtype)


@dataclass(frozen=True)
class _Draw:
    """Draws from disturbed logits."""

    plain: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    size: float

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        return self.plain(disturbed_logits(logits, uniforms, self.size), uniforms)


class _Model:
    """The model, whose token loop draws from disturbed logits."""

    def __init__(self, inner: CausalModel, size: float) -> None:
        self._inner, self._size = inner, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def token_loop(self) -> Any:
        loop = self._inner.token_loop()

        def disturbed(request: DecodeRequest, finish: Any) -> None:
            loop(replace(request, draw=_Draw(request.draw, self._size)), finish)

        return disturbed


class _Engine(EngineBase):
    """Follows two views of the same weights: the plain model, and the disturbed one for training rollouts."""

    def __init__(self, inner: RolloutEngine, size: float) -> None:
        self._inner, self._size = inner, size
        self.exact = size == 0
        self._weights: Weights | None = None

    def follow(self, weights: Weights) -> None:
        self._weights = weights

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        assert self._weights is not None
        model = self._weights.local()
        seen: Any = model if sampling is not None else _Model(model, self._size)  # type: ignore[arg-type]
        self._inner.follow(LocalWeights(seen, self._weights.version))
        return self._inner.generate(prompts, draw, sampling, on_group, first_samples)

    def close(self) -> None:
        self._inner.close()
