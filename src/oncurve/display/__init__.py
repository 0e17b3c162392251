"""What a run looks like in a terminal: its progress, a group that teaches GRPO, before and after, advice."""

from oncurve.display.advice import Advice, advise
from oncurve.display.lesson import BeforeAfter, Graded, GradedStep, explain_group, show_before_after, show_group
from oncurve.display.progress import Progress
from oncurve.display.screen import Screen, say
from oncurve.display.text import is_plain, plain_text, sparkline

__all__ = [
    "Advice",
    "BeforeAfter",
    "Graded",
    "GradedStep",
    "Progress",
    "Screen",
    "advise",
    "explain_group",
    "is_plain",
    "plain_text",
    "say",
    "show_before_after",
    "show_group",
    "sparkline",
]
