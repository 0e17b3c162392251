"""The result of one step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oncurve.types import Group


@dataclass(frozen=True)
class StepResult:
    """A step's number (from 1), its metrics by declared key, and every group it sampled.

    `advantages[g]` is `(n, T)` over the completions of `groups[g]`; None where the group was left out.
    """

    step: int
    metrics: dict[str, float]
    groups: tuple[Group, ...]
    advantages: tuple[Tensor | None, ...]
