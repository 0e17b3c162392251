"""Lagging rollouts as a list: an engine that keeps a copy of every version and samples by the one that is due."""

import copy
from collections.abc import Sequence
from typing import Any

from oncurve.models import LocalWeights, Weights
from oncurve.rollout import EngineBase, RolloutEngine
from oncurve.types import Group, Prompt


class PlainLag(EngineBase):
    """Step n is sampled by the weights that `follow` gave for step n - lag, or by the first."""

    exact = True

    def __init__(self, inner: RolloutEngine, lag: int) -> None:
        self.inner, self.lag = inner, lag
        self.versions: list[LocalWeights] = []

    def follow(self, weights: Weights) -> None:
        self.versions.append(LocalWeights(copy.deepcopy(weights.local()), weights.version))
        self.inner.follow(self.versions[max(len(self.versions) - 1 - self.lag, 0)])

    def generate(self, prompts: Sequence[Prompt], draw: int, *more: Any) -> list[Group]:
        return self.inner.generate(prompts, draw, *more)

    def close(self) -> None:
        self.inner.close()
