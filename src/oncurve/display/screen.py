"""A console for text from anywhere: what it prints may quote anything, and a reader that is gone does not matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from oncurve.display.text import printable
from oncurve.output import Terminal, visible

__all__ = ["Screen", "say"]


class Screen(Console):
    """rich's console on standard output, whose texts are made visible and whose writes do not fail.

    Colours and the cursor are the console's own to move: only what a text brings along is written as escapes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"file": Terminal(), "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is to be printed, with control characters in texts as escapes."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


def say(console: Console, *lines: str) -> None:
    """Lines as they are: no markup, no colours made of what a path or a model's name happens to look like."""
    for line in lines:
        console.print(printable(visible(line), console), markup=False, highlight=False, soft_wrap=True)
