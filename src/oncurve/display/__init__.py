"""A run in a terminal or a notebook: its progress, and what its texts need there."""

from oncurve.display.card import run_card as run_card
from oncurve.display.progress import Progress as Progress
from oncurve.display.screen import (
    Screen as Screen,
    is_plain as is_plain,
    one_line as one_line,
    printable as printable,
    say as say,
    sparkline as sparkline,
    wrapped as wrapped,
)
