"""TensorBoard: event files in the run directory (`oncurve[tensorboard]`).

One event per step has all of its scalars, so that a killed process leaves whole steps. Steps that come again after a
kill are taken back by the event that TensorBoard has for it: a session that starts at a step hides all points of
earlier files from that step on.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.output import visible
from oncurve.tracking.protocol import CompletionRow, TrackedRun

FOLDER = "tensorboard"


class TensorBoard:
    """Writes scalars, and completions and the configuration as text, into `tensorboard/` of the run directory."""

    def __init__(self) -> None:
        self._writer: Any = None
        self.place = ""

    def begin(self, run: TrackedRun) -> int:
        """Begin another event file; steps after `run.step` are hidden in the earlier ones."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.writer import FileWriter

        folder = run.folder / FOLDER
        shown = last_step(folder)
        self._writer = FileWriter(str(folder))
        self.place = f"tensorboard --logdir {run.folder}"
        if shown > run.step:
            self._writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), run.step + 1)
        elif shown < 0:
            about = {"name": run.name, "tags": list(run.settings.tags), **run.config}
            table = json.dumps(about, indent=2, ensure_ascii=False)
            self._text("config", "\n".join(f"    {line}" for line in table.splitlines()), 0)
        return min(shown, run.step)

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        """The table as Markdown, under the tag `completions/text_summary`."""
        self._text("completions", as_markdown(rows), step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """All scalars of the step in one event, which is in the file when this returns."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_summary(Summary(value=values), step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _text(self, tag: str, text: str, step: int) -> None:
        from torch.utils.tensorboard.summary import text as summary_of

        made = summary_of(tag, text.encode("utf-8", "replace").decode())  # type: ignore[no-untyped-call]
        self._writer.add_summary(made, step)


def last_step(folder: Path) -> int:
    """Return the last step whose scalars TensorBoard shows of the event files in `folder`; -1: of none."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    last = -1
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for raw in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(raw)
            if event.session_log.status == SessionLog.START:
                last = min(last, event.step - 1)
            elif any(value.HasField("simple_value") for value in event.summary.value):
                last = max(last, event.step)
    return last


def as_markdown(rows: Sequence[CompletionRow]) -> str:
    """Return the rows as a table in Markdown, whose cells show texts as they are: no markup, a line break as `⏎`."""
    lines = ["| " + " | ".join(CompletionRow._fields) + " |", "|" + "---|" * len(CompletionRow._fields)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    text = visible(value).replace("\n", "⏎")
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~" else letter for letter in text)
