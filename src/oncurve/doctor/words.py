"""A diagnosis as lines for a terminal."""

from __future__ import annotations

import textwrap

from oncurve.base.errors import command
from oncurve.doctor.examine import Course, Diagnosis

WIDTH = 100


def in_words(diagnosis: Diagnosis) -> str:
    """Return the whole diagnosis: each present finding with evidence, reason and changes, and one line per past
    alarm.
    """
    lines = [*diagnosis.damage]
    count = len(diagnosis.present)
    found = f"{count} finding{'s' if count != 1 else ''}" if count else diagnosis.early or "nothing found"
    steps = f"{diagnosis.steps} step{'s' if diagnosis.steps != 1 else ''}"
    lines.append(f"{diagnosis.directory}: {steps}, {found}")
    for course in diagnosis.present:
        lines += ["", *_paragraphs(course)]
    if diagnosis.past:
        lines += ["", "Earlier, and no more:"]
        lines += [f"  {course.finding.rule}, {_when(course)}" for course in diagnosis.past]
    if links := [link for course in diagnosis.present for link in course.links]:
        lines += ["", f"To look: {command('view', diagnosis.directory, '--at', links[0])}"]
    return "\n".join(lines)


def _when(course: Course) -> str:
    return f"step {course.last}" if course.first == course.last else f"steps {course.first} to {course.last}"


def _paragraphs(course: Course) -> list[str]:
    finding = course.finding
    lines = [f"{finding.rule} ({finding.level}), {_when(course)}"]
    for name, text in (("evidence", finding.evidence), ("reason", finding.reason)):
        lines += _block(f"  {name}  ", text)
    for number, change in enumerate(finding.changes, 1):
        lines += _block(f"  {'change' if number == 1 else '':<8}  {number}. ", change)
    return [*lines, f"  look at   {'   '.join(course.links)}"]


def _block(head: str, text: str) -> list[str]:
    head = f"{head:<12}"
    wrapper = textwrap.TextWrapper(WIDTH, head, " " * len(head), break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)
