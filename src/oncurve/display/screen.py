"""Text for a terminal, and the console that prints it: wrapped sentences, model text on one line, sparklines."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from oncurve.base.output import Terminal, visible

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-:=+*#"


def is_plain(console: Console) -> bool:
    """Return whether to print plain lines: no terminal, one that cannot move its cursor, no colours wanted, or not
    UTF-8.
    """
    utf8 = console.encoding.lower().replace("-", "") == "utf8"
    return not console.is_terminal or console.is_dumb_terminal or console.no_color or not utf8


def one_line(text: str, width: int, mark: str = " | ") -> str:
    """Return `text` with its lines joined by `mark`, control characters as escapes, cut to `width` (with `...` at the
    end).
    """
    lines = (line.strip() for line in visible(text.replace("\t", " ")).strip().split("\n"))
    joined = mark.join(line for line in lines if line)
    return joined if len(joined) <= width else joined[: max(0, width - 3)].rstrip() + "..."


def wrapped(text: str, width: int = 100, indent: str = "") -> str:
    """Return `text` in lines of at most `width` characters; each of its own lines is folded by itself, list items
    hanging.
    """
    folded = []
    for line in text.split("\n"):
        start = indent + line[: len(line) - len(line.lstrip())]
        hang = start + ("   " if re.match(r"\s*\d+\. ", line) else "")
        wrapper = textwrap.TextWrapper(width, start, hang, break_long_words=False, break_on_hyphens=False)
        folded.append(wrapper.fill(line.strip()).rstrip())
    return "\n".join(folded)


def printable(text: str, console: Console) -> str:
    """Return `text` with what the console's encoding cannot write replaced by `?`."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def clock(seconds: float) -> str:
    """Return a span of time: `0:07`, `12:30`, `3:05:00`; `?` where it is not known."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def piece_means(values: Sequence[float], most: int) -> list[float]:
    """Return the finite values in at most `most` pieces of about equal size, each as its mean."""
    known = [value for value in values if math.isfinite(value)]
    pieces = min(most, len(known))
    ends = [len(known) * piece // pieces for piece in range(pieces + 1)] if pieces else []
    return [math.fsum(known[a:b]) / (b - a) for a, b in pairwise(ends)]


def sparkline(values: Sequence[float], width: int = 16, ascii_only: bool = False) -> str:
    """Return a curve of `values` in at most `width` characters, each the mean of a piece.

    Values that are all the same are drawn at the bottom; values that are not finite are left out.
    """
    means = piece_means(values, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    marks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(marks[round((mean - low) * scale)] for mean in means)


class Screen(Console):
    """rich's console on standard output: control characters in texts are written as escapes, and writes do not fail.

    The console itself still sets colours and moves the cursor. In a notebook it prints plain lines, as `print` does.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"file": Terminal(), "highlight": False, "force_jupyter": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of `renderable`, with control characters in texts as escapes."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: without markup, and without colours for what looks like a path or a number."""
    for line in lines:
        console.print(printable(visible(line), console), markup=False, highlight=False, soft_wrap=True)
