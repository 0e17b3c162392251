"""What a declaration of a metric says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Reduction = Literal["mean", "sum", "max", "last"]


@dataclass(frozen=True)
class Metric:
    """One declared number: `Metric(name, reduction, unit).described(formula, meaning, advice)`.

    name        its key in `metrics.jsonl`: a folder and a word. `<…>` at the end declares a family: all keys that begin
                with the part before the `<`
    reduction   makes one number of a step's observations; `formula` is that number
    trl, verl   the name of the nearest quantity in TRL and in verl, if there is one
    on_policy   the number is meaningful only while the weights are those that sampled the rollout: only a step's first
                update is observed
    """

    name: str
    reduction: Reduction
    unit: str
    trl: str = ""
    verl: str = ""
    on_policy: bool = False
    formula: str = ""
    meaning: str = ""
    advice: str = ""

    def described(self, formula: str, meaning: str, advice: str) -> Metric:
        """The metric with its formula, what it means, and what to do when it looks wrong."""
        return replace(self, formula=formula, meaning=meaning, advice=advice)

    @property
    def prefix(self) -> str | None:
        """The beginning of a family's keys (`"rewards/"`); None for a single metric."""
        return self.name.partition("<")[0] if self.name.endswith(">") else None
