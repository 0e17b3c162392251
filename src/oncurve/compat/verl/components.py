"""Computations of verl that are no kind of oncurve: GPG's advantage, and one reward of several in a returned dict."""

from typing import Any

from torch import Tensor

from oncurve.advantages import OutcomeAdvantage, group_advantages
from oncurve.base.imports import locate
from oncurve.components import Equation
from oncurve.types import TrainBatch


class Gpg(OutcomeAdvantage):
    """GPG (arXiv:2504.02546): `α (r_i - mean r)`, α the batch's completions over those whose reward is not 0."""

    def per_completion(self, batch: TrainBatch) -> Tensor:
        """Return the advantages `(B,)` float64."""
        centred = group_advantages(batch.rewards, batch.valid, batch.group_ids, "none")
        rewarded = (batch.valid & (batch.rewards != 0)).sum().clamp(min=1)
        return centred * batch.valid.sum() / rewarded

    def describe(self) -> Equation:
        """Return the scaled, centred reward."""
        return Equation("α (r_i - mean r)", {"α": "the batch's completions over those whose reward is not 0"})


def part_of_score(
    data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None, *, function: str, part: str
) -> Any:
    """Return one value of the dict that the user's `compute_score` at `function` returns. Raises KeyError: no part."""
    return locate(function)(data_source, solution_str, ground_truth, extra_info)[part]
