"""Words and numbers for a terminal: model text without its tricks, short numbers, sparklines, spans of time."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console

__all__ = ["clock", "is_plain", "one_line", "plain_text", "printable", "share", "short", "sparkline", "wrapped"]

_ESCAPES = re.compile(
    r"""\x1b\[[0-?]*[ -/]*[@-~]              # CSI: colours, cursor, clearing
      | \x1b[\]PX^_].*?(?:\x07|\x1b\\|$)     # OSC, DCS, SOS, PM, APC: titles, links, clipboard, to their terminator
      | \x9b[0-?]*[ -/]*[@-~]                # CSI in one character
      | \x1b[ -/]*[0-~]                      # every other escape
    """,
    re.VERBOSE | re.DOTALL,
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-:=+*#"


def is_plain(console: Console) -> bool:
    """Whether to print plain lines: no terminal, one that cannot move its cursor, no colours wanted, or not UTF-8."""
    utf8 = console.encoding.lower().replace("-", "") == "utf8"
    return not console.is_terminal or console.is_dumb_terminal or console.no_color or not utf8


def plain_text(text: str) -> str:
    """`text` as letters only: escape sequences, control characters and marks of direction are taken out.

    A completion may hold anything; printed as it is it could clear the screen, set the title or write to the
    clipboard. Newlines stay, a tab becomes a space.
    """
    return _UNSEEN.sub("", _ESCAPES.sub("", text).replace("\t", " "))


def one_line(text: str, width: int, mark: str = " | ") -> str:
    """`text` safe to print, its lines joined by `mark`, cut to `width` characters (with `...` where it was)."""
    lines = (line.strip() for line in plain_text(text).strip().split("\n"))
    joined = mark.join(line for line in lines if line)
    return joined if len(joined) <= width else joined[: max(0, width - 3)].rstrip() + "..."


def wrapped(text: str, width: int = 100, indent: str = "") -> str:
    """`text` in lines of at most `width` characters, each of its own lines folded alone, list items hanging."""
    folded = []
    for line in text.split("\n"):
        start = indent + line[: len(line) - len(line.lstrip())]
        hang = start + ("   " if re.match(r"\s*\d+\. ", line) else "")
        folded.append(textwrap.fill(line.strip(), width, initial_indent=start, subsequent_indent=hang).rstrip())
    return "\n".join(folded)


def printable(text: str, console: Console) -> str:
    """`text` with what the console's encoding cannot write replaced by `?`."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def short(value: float) -> str:
    """A number in few characters: 0.412, 37.2, 9.1k; no more digits than matter."""
    size = abs(value)
    if size >= 9.995e13:
        return f"{value:.1e}".replace("e+", "e")
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= factor * 0.9995:
            return f"{value / factor:.1f}{letter}" if size < factor * 99.95 else f"{value / factor:.0f}{letter}"
    if size == 0 or size >= 0.09995:
        return f"{value:.3f}" if size < 9.9995 else f"{value:.1f}"
    return f"{value:.4f}" if size >= 0.00095 else f"{value:.1e}".replace("e-0", "e-")


def share(value: float) -> str:
    """A share as a whole percentage, without claiming 0 % or 100 % for what is not."""
    percent = round(100 * value)
    if value > 0 and percent == 0:
        return "<1%"
    return ">99%" if value < 1 and percent == 100 else f"{percent}%"


def clock(seconds: float) -> str:
    """A span of time: `0:07`, `12:30`, `3:05:00`; `?` where it is not known."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int = 16, ascii_only: bool = False) -> str:
    """The course of `values` in at most `width` characters, each the mean of a piece, from lowest to highest.

    Values that are all the same are drawn at the bottom. Non-finite ones are left out.
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    cells = min(width, len(known))
    ends = [len(known) * cell // cells for cell in range(cells + 1)]
    means = [math.fsum(known[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    marks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(marks[round((mean - low) * scale)] for mean in means)
