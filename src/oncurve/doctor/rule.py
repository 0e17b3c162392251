"""A rule: an illness of a run, the evidence for it, the reason why it is one, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from oncurve.doctor.case import Case
from oncurve.report import link

MOST_CURVES = 2
"""The curves that a finding links to."""

Level = Literal["alarm", "hint"]
"""alarm: the run will not get better by itself. hint: it learns, and there may be something to gain or to look at."""


@dataclass(frozen=True)
class Finding:
    """A rule that holds: its name and level, the `evidence` in numbers, the `reason`, and the `changes` in order.

    `metrics` are those of the evidence, the main one first.
    """

    rule: str
    level: Level
    evidence: str
    reason: str
    changes: Sequence[str]
    metrics: tuple[str, ...] = ()

    def links(self, run: str, step: int | None) -> list[str]:
        """Return links to the evidence in a run of this name: curves, and the groups of a step."""
        curves = [link(run, "curves", metric) for metric in self.metrics[:MOST_CURVES]]
        return curves if step is None else [*curves, link(run, step)]

    def text(self) -> str:
        """Return evidence, reason and changes as a few lines for a terminal."""
        changes = "".join(f"\n  {number}. {change}" for number, change in enumerate(self.changes, 1))
        return f"{self.rule} ({self.level}): {self.evidence}. {self.reason} What helps, in this order:{changes}"

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {name: value for name, value in vars(self).items() if name != "metrics"}


@dataclass(frozen=True)
class Rule:
    """An illness by its `name`.

    evidence    the evidence of it in a case, as a clause with numbers; None: the rule does not hold
    reason      why it is an illness, in whole sentences
    changes     what to change, settings by their key, in the order in which to try it
    settled:    values that cannot be improved on. A change that names such a setting is left out where it has its value
    families    of the rules that share a family, only the first that holds is reported: the others follow from it
    at_once     it needs no more than one step: no chance is in its evidence
    """

    name: str
    evidence: Callable[[Case], str | None]
    level: Level
    reason: str
    changes: Sequence[str]
    families: Sequence[str] = ()
    at_once: bool = False
    settled: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, case: Case) -> Finding | None:
        """Return what this rule finds; None: it does not hold, or the metrics that it reads are missing."""
        case.read.clear()
        evidence = self.evidence(case)
        if evidence is None:
            return None
        settled = [key for key, value in self.settled.items() if case.setting(key) == value]
        changes = [change for change in self.changes if not any(key in change for key in settled)]
        return Finding(self.name, self.level, evidence, self.reason, changes, tuple(dict.fromkeys(case.read)))
