"""The progress of a run: one live line on a terminal, one output of a notebook's cell, plain lines elsewhere.

In a notebook's cell it is a bar, a small table and a curve of each of the numbers that matter, updated in place. The
colours are those of the page around it, light or dark, and every text is escaped. IPython is looked for, and never
imported elsewhere.
"""

from __future__ import annotations

import math
import sys
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from oncurve.base import output
from oncurve.display.screen import Screen, clock, is_plain, piece_means, printable, sparkline, wrapped
from oncurve.metrics import share, short
from oncurve.report import rendered


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, whose cells show HTML; an IPython terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Cell:
    """An output of the running cell. `show` makes it, and replaces what it shows from then on."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, text: str) -> None:
        """Show `html`; `text` stands for it where HTML cannot be shown. A front end that is gone is no error."""
        from IPython.display import display

        shown = {"text/html": html, "text/plain": text}
        with suppress(Exception):
            if self._handle is None:
                self._handle = display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)


Field = tuple[str, str, Callable[[float], str]]
"""A metric, its label, how its value is written."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FORMS: dict[str, Callable[[float], str]] = {"share": share, "short": short, "number": partial(short, zeros=True)}
_FIRST, FIELDS = (
    [(row["metric"], row["label"], _FORMS[row["form"]]) for row in _TABLES[name]] for name in ("first", "fields")
)
TROUBLE = frozenset(row["metric"] for row in _TABLES["fields"] if row.get("trouble"))
_WIDE, _HIGH = 150, 22


def run_card(title: str, metrics: Sequence[Mapping[str, float]], lines: Iterable[str] = (), done: float = 1.0) -> str:
    """Return the HTML of a run: `title`, a bar that is filled by the share `done`, a row for each number, `lines`
    below.

    metrics    one mapping per step; without one there is no table
    """
    rows = [row for field in (*_FIRST, *FIELDS) if (row := _row(*field, metrics)) is not None]
    heads = ("", "first", "last", "") if len(metrics) > 1 else ("", "last", "")
    share_done = min(1.0, max(0.0, done))
    shown = {"rows": rows, "heads": heads, "lines": list(lines), "wide": _WIDE, "high": _HIGH}
    return rendered("card.html.j2", title=title, done=share_done, **shown)


def _row(
    key: str, label: str, words: Callable[[float], str], metrics: Sequence[Mapping[str, float]]
) -> tuple[str, list[str], str] | None:
    """Return label, first and last value, and curve of one number; None where no step has it."""
    values = [line[key] for line in metrics if key in line and math.isfinite(line[key])]
    if not values or (key in TROUBLE and not any(values)):
        return None
    ends = (values[0], values[-1]) if len(metrics) > 1 else values[-1:]
    return label, list(map(words, ends)), curve(values)


def curve(values: Sequence[float]) -> str:
    """Return the points of an SVG's polyline, each the mean of a piece where there are many; empty for fewer than two
    values.
    """
    means = piece_means(values, _WIDE // 2)
    if len(means) < 2:
        return ""
    low, high = min(means), max(means)
    scale = (_HIGH - 4) / (high - low) if high > low else 0.0
    return " ".join(
        f"{2 + index * (_WIDE - 4) / (len(means) - 1):.1f},{_HIGH - 2 - (mean - low) * scale:.1f}"
        for index, mean in enumerate(means)
    )


PLAIN_LINES = 60  # a longer run prints every second, third, ... step
REDRAW_SECONDS = 0.25  # between two updates of a notebook's output
_BAR = 22
_SPARK = 14
_BOLD = frozenset({"reward", "loss", "accuracy", "no gradient:"})
_RECENT = 20  # steps from which the time left is told
_STILL = 3  # steps without a gradient after which the line says so


class Progress:
    """Shows the steps of a run as they end. Single use, as a context:

        with Progress(steps=120) as progress:
            trainer.observers = (lambda result: progress.step(result.metrics),)

    On a terminal with colours one line is redrawn; otherwise (a pipe, `NO_COLOR`, a terminal without UTF-8) plain
    ASCII lines are printed, all steps or, in a long run, some of them. In a notebook one output of the cell is updated.
    Other output goes through `say` or the same `console`, and stands above the live line. `rewards` are those of the
    run's earlier steps. `clock_seconds` is a monotonic clock (for tests).
    """

    def __init__(
        self,
        steps: int,
        console: Console | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
        rewards: Sequence[float] = (),
    ) -> None:
        self.console = console or Screen()
        self.steps = steps
        self._plain = is_plain(self.console)
        self._now = clock_seconds
        self._ends: deque[tuple[int, float]] = deque(maxlen=_RECENT + 1)
        self._starting = True  # until the second step: the first also has what is done once, like starting processes
        self._rewards = list(rewards)
        self._history: deque[Mapping[str, float]] = deque(maxlen=_STILL)
        self._accuracy: tuple[str, float] | None = None  # and the step after which it was measured
        self._live: Live | None = None
        self._cell: Cell | None = None
        self._all: list[Mapping[str, float]] = []
        self._drawn = -math.inf
        self._notices: list[str] = []
        self._open = ExitStack()

    def __enter__(self) -> Progress:
        self._started = self._now()
        if in_notebook():
            self._cell = Cell()
            self._draw()
            self._open.enter_context(output.live(self._notify))
        elif not self._plain:
            self._live = Live(
                get_renderable=self._render, console=self.console, refresh_per_second=2, vertical_overflow="visible"
            )
            self._live.start(refresh=False)
            self._open.enter_context(output.live(self._notices.append))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        if self._live is not None:
            self._live.stop()
        self._draw()

    def say(self, text: str) -> None:
        """Print a sentence above the live line. The text is taken as it is: no markup."""
        self.console.print(Text(printable(text, self.console)), soft_wrap=self._plain)

    def advise(self, text: str) -> None:
        """Print advice on the run above the live line, set off from the steps and wrapped to the terminal."""
        self.say(f"\n{wrapped(text, min(100, self.console.width))}\n")

    def start(self, metrics: Mapping[str, float]) -> None:
        """Show the evaluation before training: `metrics` by declared key, `step` 0 among them."""
        self._all.append(metrics)
        found = "  ".join(f"{key} {value:.4g}" for key, value in metrics.items() if key != "step")
        self.say(f"before training  {found}")

    def step(self, metrics: Mapping[str, float]) -> None:
        """Show a step that has ended; `metrics` by declared key, `step` among them."""
        step = int(metrics["step"])
        if not self._ends:
            self._ends.append((step - 1, self._started))
        elif self._starting:
            self._ends.popleft()
            self._starting = False
        self._ends.append((step, self._now()))
        self._history.append(metrics)
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])
        if "eval/accuracy" in metrics:
            self._accuracy = share(metrics["eval/accuracy"]), metrics["step"]
        if self._cell is not None:
            self._all.append(metrics)
            if self._now() - self._drawn >= REDRAW_SECONDS:
                self._draw()
        elif self._plain and self._due(step):
            self.console.print(Text(self.line()), soft_wrap=True)
        elif self._live is not None:
            self._live.refresh()

    def _draw(self) -> None:
        """Show all that is known in the cell of a notebook, if there is one."""
        if self._cell is None:
            return
        self._drawn = self._now()
        step = int(self._history[-1]["step"]) if self._history else 0
        left = f"{clock(self.seconds_left())} left" if step else "the first step is under way"
        title = f"step {step}/{self.steps}" + (f" · {left}" if step < self.steps else "")
        text = self.line() if self._history else title
        self._cell.show(run_card(title, self._all, self._notices, done=step / max(1, self.steps)), text)

    def _notify(self, text: str) -> None:
        """Show what a signal handler says below the table."""
        self._notices.append(text)
        self._draw()

    def _due(self, step: int) -> bool:
        every = -(-self.steps // PLAIN_LINES)
        return len(self._history) == 1 or step % every == 0 or step == self.steps

    def line(self) -> str:
        """Return the last step as one plain ASCII line."""
        step = int(self._history[-1]["step"])
        words = [f"step {step:>{len(str(self.steps))}}/{self.steps}", *map(" ".join, self._fields())]
        return "  ".join([*words, f"left {clock(self.seconds_left())}"])

    def seconds_left(self) -> float:
        """Return the time left at the pace of the last steps, evaluations and all; infinite before the first step.

        The pace of the first step is used until the second has ended.
        """
        if len(self._ends) < 2:
            return float("inf")
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        return (self.steps - last) * (ended - began) / (last - first) if last > first else float("inf")

    def _fields(self) -> list[tuple[str, str]]:
        """Return the entries of a line about the last step, as (label, value); metrics that are missing are left
        out.
        """
        metrics = self._history[-1]
        found: list[tuple[str, str]] = []
        no_gradient = len(self._history) == _STILL and all(map(_without_gradient, self._history))
        if no_gradient:
            found.append(("no gradient:", "all groups are constant"))
        elif "reward/mean" in metrics:
            curve = sparkline(self._rewards, _SPARK, ascii_only=self._plain)
            found.append(("reward", f"{short(metrics['reward/mean'], zeros=True)} [{curve:<{_SPARK}}]"))
        elif "policy/objective_loss" in metrics and "policy/teacher_kl" not in metrics:
            found.append(("loss", short(metrics["policy/objective_loss"], zeros=True)))
        if self._accuracy is not None:
            accuracy, measured = self._accuracy
            found.append(("accuracy", accuracy + f" (step {measured:g})" * (measured != metrics["step"])))
        shown = metrics.keys() - ({"groups/constant"} if no_gradient else ())
        for key, label, words in FIELDS:
            if key in shown and (metrics[key] or key not in TROUBLE):
                found.append((label, words(metrics[key])))
        return found

    def _render(self) -> RenderableType:
        """Return the live line below what signal handlers have said; a handler's own print would be covered by a
        redraw.
        """
        if not self._notices:
            return self._line()
        notices = wrapped("\n".join(self._notices), max(20, self.console.width - 1))
        return Text("\n").join([Text(printable(notices, self.console), "bold"), self._line()])

    def _line(self) -> Text:
        """Return the last step, folded between its fields where the terminal is narrow."""
        if not self._history:
            return Text(f"step 0/{self.steps}  the first step is under way ({clock(self._now() - self._started)})")
        step = int(self._history[-1]["step"])
        filled = round(_BAR * step / self.steps)
        bar = ("━" * filled, "cyan"), ("─" * (_BAR - filled), "dim")
        fields = [Text.assemble(("step ", "dim"), (f"{step}/{self.steps} ", "bold"), *bar)]
        for label, value in self._fields():
            fields.append(Text.assemble((f"{label} ", "dim"), (value, "bold" if label in _BOLD else "")))
        since = self._now() - self._ends[-1][1]
        fields.append(Text.assemble((clock(self.seconds_left() - since), "bold"), (" left", "dim")))
        return _folded(fields, self.console.width)


def _without_gradient(metrics: Mapping[str, float]) -> bool:
    return metrics.get("groups/constant") == 1.0 and not metrics.get("advantage/abs_mean")


def _folded(fields: list[Text], width: int) -> Text:
    """Return the fields two spaces apart, on as few lines as they need; a field is never broken."""
    lines: list[Text] = []
    for field in fields:
        if lines and lines[-1].cell_len + 2 + field.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", field)
        else:
            lines.append(field)
    return Text("\n").join(lines)
