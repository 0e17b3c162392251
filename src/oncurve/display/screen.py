"""A console that is safe for any text, and that a closed pipe does not stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from oncurve.base.output import Terminal, visible
from oncurve.display.text import printable


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
