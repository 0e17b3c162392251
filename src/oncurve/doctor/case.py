"""The input of the rules: the metrics of a run's last and first steps, its last groups, its settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncurve.types import Group

Line = Mapping[str, float]
"""The metrics of one step, by their declared keys."""

OPENING = 5
"""Steps at the start of a run with which later ones are compared."""

WINDOW = 40
"""The last steps that the rules read."""

LEAST_STEPS = 3
"""The fewest steps for which a state must last before a rule may hold."""

LEAST_GROUPS = 32
"""The fewest groups over which a rule takes a mean: with fewer, chance makes a hard task look like a flat reward."""

MOST_STEPS = 12
"""The most steps over which a rule takes a mean, however few prompts a step has."""


@dataclass(frozen=True)
class Sample:
    """A completion with its reward; `reward` is None where the completion is not valid."""

    text: str
    length: int
    reward: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledGroup:
    """The completions of one prompt, the other columns of its row, and where it is, with a link; "" where unknown."""

    samples: tuple[Sample, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @classmethod
    def of(cls, group: Group) -> SampledGroup:
        """Return the view of a scored group in memory."""
        pairs = zip(group.completions, group.scores, strict=True)
        samples = (Sample(c.text, len(c.ids), s.reward if s.valid else None, s.parts) for c, s in pairs)
        return cls(tuple(samples), group.prompt.columns)

    @classmethod
    def read(cls, record: Mapping[str, Any], place: str = "") -> SampledGroup:
        """Return the view of a group as `oncurve.report.group_record` has written it. Raises KeyError: it is another
        record.

        Example: `{"prompt": {"columns": {}}, "completions": [{"text": "4", "ids": [6, 2], "reward": 1.0}]}`.
        """
        samples = (
            Sample(item["text"], len(item["ids"]), item.get("reward"), item.get("parts", {}))
            for item in record["completions"]
        )
        return cls(tuple(samples), record["prompt"].get("columns", {}), place)


def such_as(groups: Iterable[SampledGroup]) -> str:
    """Return where the first of these groups is, as the end of a sentence; "" where that is not known."""
    place = next((group.place for group in groups), "")
    return place and f", as in {place}"


@dataclass(frozen=True)
class Case:
    """A run at one of its steps.

    lines       the metrics of the last steps, at most `WINDOW`, in order
    opening     those of the run's first steps, at most `OPENING`
    groups      the groups of the last `LEAST_STEPS` steps; empty where they are not known
    settings    the tables of `config.toml`; empty where they are not known
    memory      bytes of the memory that `memory/peak_bytes` counts: the GPU's, or the machine's; None: not known
    read        the metrics that were asked for, in order: those of a rule are its evidence
    """

    lines: Sequence[Line]
    opening: Sequence[Line] = ()
    groups: Sequence[SampledGroup] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    memory: float | None = None
    read: list[str] = field(default_factory=list, compare=False)

    @property
    def span(self) -> int:
        """The steps over which a rule takes a mean: `LEAST_STEPS`, or as many as have `LEAST_GROUPS` groups."""
        prompts = self.setting("data.prompts_per_step")
        steps = math.ceil(LEAST_GROUPS / prompts) if isinstance(prompts, int) and prompts > 0 else 0
        return min(max(LEAST_STEPS, steps), MOST_STEPS)

    @property
    def step(self) -> int:
        """The number of the last step; 0 before the first."""
        return int(self.lines[-1].get("step", len(self.lines))) if self.lines else 0

    def setting(self, key: str) -> Any:
        """Return the value of a setting such as "data.prompts_per_step"; None where it is not set or not known."""
        section, _, name = key.partition(".")
        table = self.settings.get(section)
        return table.get(name) if isinstance(table, Mapping) else None

    def last(self, key: str, steps: int | None = None) -> list[float]:
        """Return the metric in the last `steps` steps (None: `span`); empty where one of them does not have it."""
        self.read.append(key)
        count = steps or self.span
        values = [line[key] for line in list(self.lines)[-count:] if key in line]
        return values if len(values) == count else []

    def total(self, key: str) -> float:
        """Return the sum of a count over the last `span` steps; a step in which nothing was counted does not have
        it.
        """
        self.read.append(key)
        return sum(line.get(key, 0.0) for line in list(self.lines)[-self.span :])

    def mean(self, key: str, steps: int | None = None) -> float | None:
        """Return the mean of `last`; None where that is empty."""
        values = self.last(key, steps)
        return statistics.fmean(values) if values else None

    def at_first(self, key: str) -> float | None:
        """Return the mean over the first steps; None where there are none, or where the last steps are among them."""
        values = [line[key] for line in self.opening if key in line]
        begun = int(self.opening[0].get("step", 1)) - 1 if self.opening else 0  # steps before a resumed run's first one
        apart = len(self.opening) == OPENING and self.step >= OPENING + self.span + begun
        return statistics.fmean(values) if values and apart else None

    def scored(self) -> Iterator[tuple[SampledGroup, list[tuple[Sample, float]]]]:
        """Return each group with its valid samples and their rewards."""
        for group in self.groups:
            yield group, [(sample, sample.reward) for sample in group.samples if sample.reward is not None]

    @property
    def bounded(self) -> bool:
        """Return whether all known mean rewards are between 0 and 1, where 1 can be taken for "right"."""
        return all(0.0 <= line.get("reward/mean", 0.0) <= 1.0 for line in (*self.opening, *self.lines))

    @property
    def solved(self) -> bool:
        """Return whether rewards between 0 and 1 are mostly 1: constant groups and low entropy are then as they should
        be.
        """
        reward = self.mean("reward/mean")
        return self.bounded and reward is not None and reward >= SOLVED

    @property
    def flat(self) -> float | None:
        """The share of constant groups where it is 0.9 or more and no advantage comes from elsewhere; else None.

        With a critic or a teacher, constant groups have advantages all the same: such a run is not flat.
        """
        return self._constant(self.span)

    def _constant(self, steps: int) -> float | None:
        share, known = (self.mean(key, steps) for key in ("groups/constant", "reward/mean"))
        elsewhere = any(line.get("groups/constant") == 1 and line.get("advantage/abs_mean") for line in self.lines)
        return share if share is not None and share >= MOST and known is not None and not elsewhere else None

    @property
    def early(self) -> str | None:
        """A sentence on a run with fewer steps than the rules need; None for a longer one."""
        if len(self.lines) >= self.span:
            return None
        share = self._constant(len(self.lines))
        so_far = (
            "" if share is None else f"; so far {share:.0%} of the groups are constant: nothing is learned from them"
        )
        return f"too few to tell (the rules need {self.span}){so_far}"

    @property
    def rising(self) -> bool:
        """Return whether the reward of the last steps is clearly above that of the first ones."""
        now, first = self.mean("reward/mean"), self.at_first("reward/mean")
        return now is not None and first is not None and now > first + max(0.05, 0.1 * abs(first))


MOST, SOLVED = 0.9, 0.8
"""The share from which something holds of nearly all; the mean reward from which a task counts as solved."""
