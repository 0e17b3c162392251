"""The advantage of a demonstration: 1 for every token, so that the policy gradient is that of maximum likelihood.

    loss = -1/N Σ_it log π_θ(o_it)        with Â_it = 1 in the objective `reinforce` and the aggregation `token-mean`

N counts the trained tokens of the whole update. This is supervised fine-tuning (SFT) of a language model.
"""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from oncurve.components import Component, Equation
from oncurve.types import TrainBatch


class DemonstrationAdvantage(Component):
    """1 for every token of a given completion (`kind = "demonstration"`): the warm start of `[sft]`."""

    reads_rewards: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"demonstrations"})
    min_valid_completions: ClassVar[int] = 1

    def __call__(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return ones `(B, T)` float64."""
        return torch.ones(batch.completion_ids.shape, dtype=torch.float64)

    def describe(self) -> Equation:
        """Return the number."""
        return Equation("1")
