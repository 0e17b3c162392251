"""What a declaration of a metric says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Metric", "Reduction"]

Reduction = Literal["mean", "sum", "max", "last"]


@dataclass(frozen=True)
class Metric:
    """One declared number.

    `name` is its key in `metrics.jsonl`. A name that ends in `<…>` declares a family: any key that begins with what
    stands before the `<`. `reduction` makes one number of a step's observations; `formula` is that number.
    `on_policy`: it means something only where the weights are still those that the rollout was sampled with, so of a
    step's updates the first one alone is observed.
    """

    name: str
    reduction: Reduction
    unit: str
    formula: str
    meaning: str
    advice: str
    on_policy: bool = False

    @property
    def prefix(self) -> str | None:
        """What the keys of a family begin with (`"reward/"`); None for a single metric."""
        return self.name.partition("<")[0] if self.name.endswith(">") else None
