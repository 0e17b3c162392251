"""The groups that a step is given, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from oncurve.data import Counts
from oncurve.trainer.groups.surplus import SurplusGroup
from oncurve.types import Group


@dataclass(frozen=True)
class Collected:
    """The groups of a step, with their scores.

    groups    those that the step trains on, and those that it leaves out for good
    usable    those that it trains on: surplus of the step before first, then in the order of the prompts
    surplus   those that the next step trains on; they are not among `groups`
    cursor    prompts taken from the source, these included
    draw      rounds of sampling, these included
    counts    of a curriculum, `usable` included
    """

    groups: tuple[Group, ...]
    usable: tuple[Group, ...]
    surplus: tuple[SurplusGroup, ...]
    cursor: int
    draw: int
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """A step's number (from 1), its metrics by declared key, and every group it sampled.

    `advantages[g]` is `(n, T)` over the completions of `groups[g]`; None where the group was left out.
    """

    step: int
    metrics: dict[str, float]
    groups: tuple[Group, ...]
    advantages: tuple[Tensor | None, ...]
