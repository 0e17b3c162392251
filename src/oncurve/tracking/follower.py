"""A thread that shows the log of a run in one tracker, and outlives its failures."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO

from oncurve.tracking.protocol import CompletionRow, TrackedRun, Tracker

TABLES_KEPT = 32
"""Tables of completions that wait for a tracker that does not answer; older ones are dropped."""

GIVES_UP_AFTER = 12
"""Failures in a row, with waits of 1, 2, 4 ... 60 seconds between them: about seven minutes."""

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0


class Follower:
    """Shows every step of `log`, the run's `metrics.jsonl`, in a tracker, in order, each once.

    The log is the queue: nothing is kept in memory for a tracker that is slow or does not answer, and after a kill a
    tracker goes on after the last step that it says it shows. Training never waits for it.

    `failures` counts the exceptions of the tracker; after `GIVES_UP_AFTER` in a row it is left alone, as the run's
    directory has everything. `news` are lines for the user: where the run is seen, the first failure, giving up.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], run: TrackedRun, log: Path) -> None:
        self.name = name
        self.failures = 0
        self.shown = -1
        self.news: list[str] = []
        self._make, self._run, self._log = make, run, log
        self._recorded = run.step
        self._tables: dict[int, tuple[CompletionRow, ...]] = {}
        self._changed = threading.Condition()
        self._ending = False
        self._in_a_row = 0
        self._place = ""
        self._thread = threading.Thread(target=self._work, name=f"oncurve-{name}", daemon=True)
        self._thread.start()

    def recorded(self, step: int, table: tuple[CompletionRow, ...] = ()) -> None:
        """Say that the log has `step`, whose completions `table` shows. Returns at once."""
        with self._changed:
            self._recorded = step
            if table:
                self._tables[step] = table
                while len(self._tables) > TABLES_KEPT:
                    del self._tables[next(iter(self._tables))]
            self._changed.notify()

    def end(self) -> None:
        """Say that no further step comes. Returns at once."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def wait(self, seconds: float) -> str | None:
        """Wait until the tracker is closed, `seconds` at most; returns a line where it does not show all steps."""
        self._thread.join(seconds)
        missing = self._recorded - max(self.shown, 0)
        if missing <= 0 and not self._thread.is_alive():
            return None
        why = (
            f"it failed {self.failures} times"
            if self.failures
            else "it gave no answer in the time it had (tracking.timeout_seconds)"
        )
        return f"{self.name} lacks {max(missing, 0)} of {self._recorded} steps: {why}"

    def _work(self) -> None:
        """Show all that comes; after a failure with another tracker, which says where to go on."""
        while self._in_a_row < GIVES_UP_AFTER:
            try:
                self._show()
                return
            except Exception as error:
                self.failures += 1
                self._in_a_row += 1
                if self.failures == 1:
                    self._tell(f"{_reason(error)}; training goes on, and it is tried again")
            if not self._pause(min(FIRST_WAIT * 2 ** (self._in_a_row - 1), LONGEST_WAIT)):
                return
        self._tell(f"given up after {GIVES_UP_AFTER} failures in a row; metrics.jsonl has all steps")

    def _show(self) -> None:
        """Show steps until the end of the run. Raises whatever the tracker raises."""
        with closing(self._make()) as tracker:
            shown: object = tracker.begin(self._run)
            if not isinstance(shown, int):
                raise TypeError(f"begin must return the last step shown, -1 for none; it returned {shown!r:.80}")
            self.shown = shown
            place = getattr(tracker, "place", "")
            if place and place != self._place:
                self._tell(place)
                self._place = place
            with self._log.open("rb") as lines:
                for record in self._records(lines):
                    step = int(record.pop("step"))
                    if step > self.shown:
                        self._show_step(tracker, step, record)

    def _show_step(self, tracker: Tracker, step: int, metrics: dict[str, float]) -> None:
        table = self._tables.get(step)
        if table is not None:
            tracker.groups(step, table)
        tracker.metrics(step, metrics)
        self.shown, self._in_a_row = step, 0
        self._run = replace(self._run, step=step)  # what the next `begin` may take for granted
        with self._changed:
            self._tables.pop(step, None)

    def _records(self, lines: IO[bytes]) -> Iterator[dict[str, float]]:
        """Return the lines of the log as they come, until the end of the run."""
        while True:
            with self._changed:
                ending, recorded = self._ending, self._recorded
            while (line := lines.readline()).endswith(b"\n"):
                record = json.loads(line)
                if record["step"] > recorded and not ending:
                    break
                yield record
            lines.seek(-len(line), os.SEEK_CUR)  # a line that is being written, or whose table is still to come
            if ending:
                return
            self._wait_beyond(recorded)

    def _wait_beyond(self, step: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._recorded != step, LONGEST_WAIT)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt, or until the run ends; whether there is one: not where it had ended before."""
        with self._changed:
            ended = self._ending
            self._changed.wait_for(lambda: self._ending, seconds)
            return not ended

    def _tell(self, line: str) -> None:
        self.news.append(f"{self.name}: {line}")


def _reason(error: Exception) -> str:
    """Return an exception in one short line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
