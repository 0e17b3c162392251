"""The rules: an illness of a run each, its evidence, its reason, and what to change.

They are tried over one case, over the steps of a run that goes on, and over a run on the disk.
"""

import textwrap
import tomllib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from oncurve.base.errors import command
from oncurve.doctor import behaviour, updates
from oncurve.doctor.case import LEAST_STEPS, OPENING, WINDOW, Case, Line, SampledGroup
from oncurve.report import RunRecord, link, read_run, rendered
from oncurve.types import Group

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


_EVIDENCE = vars(updates) | vars(behaviour)

_ROWS = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
_NO_SIGNAL = _ROWS.pop("no_signal")
RULES = tuple(
    Rule(name, _EVIDENCE[name.replace("-", "_")], **{**row, "reason": row["reason"].format(no_signal=_NO_SIGNAL)})
    for name, row in _ROWS.items()
)
"""In the order of precedence: an earlier rule of a family is the reason for the later ones."""

FAMILIES = {rule.name: rule.families for rule in RULES}

MOST_CASES = 2000
"""The most steps of a run on the disk at which the rules are tried; of a longer run, every second, third, ... one."""


def examine(case: Case) -> tuple[Finding, ...]:
    """Return what the rules find in a case, at most one finding per family. A rule whose metrics are missing does not
    hold.

    Before `case.span` steps there is too little to see but for the rules that hold `at_once`.
    """
    found: list[Finding] = []
    taken: set[str] = set()
    for rule in RULES if case.early is None else [rule for rule in RULES if rule.at_once and case.lines]:
        if taken.isdisjoint(rule.families) and (finding := rule(case)) is not None:
            taken.update(rule.families)
            found.append(finding)
    return tuple(found)


def memory_of(environment: Mapping[str, Any]) -> float | None:
    """Return bytes of the memory that `memory/peak_bytes` counts, by `environment.json`; None where it is not
    recorded.
    """
    on_cpu = environment.get("device", "cpu") == "cpu"
    found = environment.get("memory_bytes" if on_cpu else "device_memory_bytes")
    return float(found) if isinstance(found, (int, float)) else None


class Watch:
    """The rules over a run that goes on: each alarm is given once, at the first step at which its rule holds.

    settings       the tables of the run's configuration
    environment    what `environment.json` holds
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> None:
        self._settings, self._memory = settings, memory_of(environment or {})
        self._opening: list[Line] = []
        self._lines: deque[Line] = deque(maxlen=WINDOW)
        self._groups: deque[tuple[SampledGroup, ...]] = deque(maxlen=LEAST_STEPS)
        self._told: set[str] = set()

    def step(self, metrics: Line, groups: Sequence[Group] = ()) -> tuple[Finding, ...]:
        """Return the alarms that are new after this step, by its metrics and its scored groups; hints are for
        `diagnose`.
        """
        if len(self._opening) < OPENING:
            self._opening.append(metrics)
        self._lines.append(metrics)
        self._groups.append(tuple(SampledGroup.of(group) for group in groups if group.scores))
        known = tuple(group for step in self._groups for group in step)
        case = Case(tuple(self._lines), tuple(self._opening), known, self._settings, self._memory)
        new = tuple(found for found in examine(case) if found.level == "alarm" and found.rule not in self._told)
        self._told.update(found.rule for found in new)
        return new


@dataclass(frozen=True)
class Course:
    """A finding with the first and the last step at which its rule was seen to hold, and links to its evidence."""

    finding: Finding
    first: int
    last: int
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The findings of the rules in a run on the disk.

    present    what holds at its last step
    past       alarms that held earlier and hold no more, but for those that a present finding explains
    steps      the number of its last step; 0: it has none
    damage     a sentence for each damaged file, whose damaged part is left out
    early      a sentence where it has fewer steps than the rules need; None where it has enough
    """

    directory: Path
    steps: int
    present: tuple[Course, ...] = ()
    past: tuple[Course, ...] = ()
    damage: tuple[str, ...] = field(default=())
    early: str | None = None

    @property
    def healthy(self) -> bool:
        """Return whether no alarm holds at the last step."""
        return all(course.finding.level != "alarm" for course in self.present)

    def to_json(self) -> dict[str, Any]:
        """Return `{"directory": ..., "steps": 40, "healthy": false, "present": [{"rule": "all-wrong", "level": "alarm",
        "evidence": ..., "reason": ..., "changes": [...], "first_step": 3, "last_step": 40,
        "links": ["#/sums/curves/reward%2Fmean", "#/sums/40"]}], "past": [],
        "damage": [], "early": null}`."""
        return {
            "directory": str(self.directory),
            "steps": self.steps,
            "healthy": self.healthy,
            "present": [_course_json(course) for course in self.present],
            "past": [_course_json(course) for course in self.past],
            "damage": list(self.damage),
            "early": self.early,
        }


def _course_json(course: Course) -> dict[str, Any]:
    found = {"first_step": course.first, "last_step": course.last, "links": list(course.links)}
    return course.finding.to_json() | found


def diagnose(directory: Path) -> Diagnosis:
    """Examine the run in `directory`, finished, stopped or going on. Nothing is written.

    The rules of metrics are tried at every step, as the run itself does; those of groups at the last one.
    Raises RunDirectoryError: it is no run. CheckpointError: metrics.jsonl cannot be read.
    """
    record = read_run(directory)
    lines = [line for line in record.metrics if line.get("step", 1) > 0]  # an evaluation before step 1 is no step
    if not lines:
        return Diagnosis(directory, 0, damage=record.damage, early=Case((), settings=record.config or {}).early)
    memory = memory_of(record.environment or {})
    settings = record.config or {}
    courses: dict[str, Course] = {}
    every = -(-len(lines) // MOST_CASES)
    for end in range(len(lines), 0, -every):
        groups = _last_groups(record) if end == len(lines) else ()
        case = Case(lines[max(0, end - WINDOW) : end], lines[:OPENING][:end], groups, settings, memory)
        for finding in examine(case):
            known = courses.get(finding.rule, Course(finding, case.step, case.step))
            courses[finding.rule] = replace(known, first=case.step)
    last = int(lines[-1].get("step", len(lines)))
    order = {rule.name: number for number, rule in enumerate(RULES)}
    linked = [replace(course, links=_links(course, record)) for course in courses.values()]
    found = sorted(linked, key=lambda course: order[course.finding.rule])
    present = tuple(course for course in found if course.last == last)
    explained = {family for course in present for family in FAMILIES[course.finding.rule]}
    alarms = (course for course in found if course.last < last and course.finding.level == "alarm")
    past = tuple(course for course in alarms if explained.isdisjoint(FAMILIES[course.finding.rule]))
    return Diagnosis(directory, last, present, past, record.damage, Case(lines[-WINDOW:], settings=settings).early)


def _links(course: Course, record: RunRecord) -> tuple[str, ...]:
    """Return the links to a finding's evidence: its curves, and the kept groups nearest to its last step."""
    step = min(record.steps, key=lambda step: abs(step - course.last), default=None)
    return tuple(course.finding.links(record.directory.resolve().name, step))


def _last_groups(record: RunRecord) -> tuple[SampledGroup, ...]:
    """Return the groups of the last steps, as far as they are kept; without those that cannot be read."""
    found: list[SampledGroup] = []
    last = int(record.metrics[-1].get("step", len(record.metrics)))
    for step in (step for step in record.steps if step > last - LEAST_STEPS):
        for group in record.groups(step):
            place = link(record.directory.resolve().name, step, group["group"])
            try:
                found.append(SampledGroup.read(group, f"step {step}, group {group['group']} ({place})"))
            except (KeyError, TypeError, AttributeError):
                continue
    return tuple(found)


def in_words(diagnosis: Diagnosis) -> str:
    """Return the whole diagnosis: each present finding with evidence, reason and changes, and one line per past
    alarm.
    """
    return rendered("doctor.j2", d=diagnosis, command=command, block=_block).rstrip("\n")


def _block(head: str, text: str) -> str:
    """Return a text after its head, wrapped below its own beginning."""
    head = f"{head:<12}"
    wrapper = textwrap.TextWrapper(100, head, " " * len(head), break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)
