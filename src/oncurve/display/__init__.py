"""A run in a terminal: its progress, a group that explains GRPO, completions before and after."""

from oncurve.display.card import run_card as run_card
from oncurve.display.lesson import (
    BeforeAfter as BeforeAfter,
    ScoredCompletion as ScoredCompletion,
    show_before_after as show_before_after,
    show_group as show_group,
)
from oncurve.display.progress import Progress as Progress
from oncurve.display.screen import Screen as Screen, say as say
from oncurve.display.text import one_line as one_line, sparkline as sparkline, wrapped as wrapped
