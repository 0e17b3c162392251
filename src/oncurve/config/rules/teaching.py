"""The teacher of a distillation in the settings: what is wrong with it, what is missing, and what the plan says."""

from __future__ import annotations

from pathlib import Path

from oncurve.advantages import TeacherSettings, teacher_of
from oncurve.config.sections import RunConfig


def wrong_template(config: RunConfig) -> list[str]:
    """A line where the teacher's template is none, or has a column that the data does not have."""
    teacher = teacher_of(config.advantage)
    if teacher is None or teacher.template is None:
        return []
    wrong = config.data.wrong_template("advantage.template", teacher.template)
    return [] if wrong is None else [wrong]


def missing_teacher(config: RunConfig) -> list[str]:
    """A line where the advantage needs a teacher, and the policy would teach itself what it does already."""
    if teacher_of(config.advantage) != TeacherSettings():
        return []
    return [
        "advantage.teacher: missing; name a folder or a hub id, or set advantage.template, by which the policy teaches "
        "itself"
    ]


def teacher_in_words(config: RunConfig, held: int | None) -> list[str]:
    """The plan's sentence about the teacher, which takes `held` bytes (None: not known yet); none without one."""
    teacher = teacher_of(config.advantage)
    if teacher is None:
        return []
    reads = "the policy's prompts" if teacher.template is None else "prompts of its own (advantage.template)"
    if teacher.path is None:
        return [f"The policy teaches itself: it scores every completion a second time, after {reads}."]
    size = "a frozen model" if held is None else f"{held / 1e6:,.0f} MB"
    return [f"The teacher {Path(teacher.path).name} scores every completion, after {reads}; it takes memory ({size})."]
