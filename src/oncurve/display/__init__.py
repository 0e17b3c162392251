"""A run in a terminal or a notebook: its progress, and what its texts need there."""

from oncurve.display.progress import Progress, run_card
from oncurve.display.screen import Screen, is_plain, one_line, printable, say, sparkline, wrapped
