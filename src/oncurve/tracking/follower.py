"""A thread per tracker that shows the log of a run, and outlives its failures; and all of them as one observer."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO

from torch import Tensor

from oncurve.tracking.protocol import CompletionRow, TrackedRun, Tracker, TrackingSettings
from oncurve.types import Group

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
        late = "it gave no answer in the time it had (tracking.timeout_seconds)"
        why = f"it failed {self.failures} times" if self.failures else late
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


class Tracking:
    """Follows a run's log into each of its trackers. Nothing here waits for one but `close`, and that has a limit."""

    def __init__(self, settings: TrackingSettings, followers: Sequence[Follower] = ()) -> None:
        self._settings, self._followers = settings, followers

    def recorded(self, step: int, groups: Sequence[Group], advantages: Sequence[Tensor | None]) -> None:
        """Say that the log has `step`. `advantages[g]` is `(n, T)` over the completions of `groups[g]`, or None."""
        every = self._settings.completions_every
        due = bool(self._followers) and every > 0 and step % every == 0
        table = completion_rows(groups, advantages, self._settings.completions_rows) if due else ()
        for follower in self._followers:
            follower.recorded(step, table)

    def news(self) -> list[str]:
        """Return the lines for the user since the last call."""
        lines: list[str] = []
        for follower in self._followers:
            while follower.news:
                lines.append(follower.news.pop(0))
        return lines

    def end(self) -> None:
        """Say that no further step comes. Returns at once."""
        for follower in self._followers:
            follower.end()

    def close(self, seconds: float | None = None) -> list[str]:
        """Wait until the trackers show all steps and are closed, all together `seconds` at most.

        seconds   None: `tracking.timeout_seconds`

        Returns the lines for the user.
        """
        self.end()
        until = time.monotonic() + (self._settings.timeout_seconds if seconds is None else seconds)
        lacking = [follower.wait(max(0.0, until - time.monotonic())) for follower in self._followers]
        return [*self.news(), *(line for line in lacking if line is not None)]


def completion_rows(
    groups: Sequence[Group], advantages: Sequence[Tensor | None], most: int
) -> tuple[CompletionRow, ...]:
    """Return the completions of the first groups, at most `most`; `advantages[g]` is `(n, T)`, or None."""
    pairs = zip(groups, advantages, strict=True)
    rows = (_row(group, index, advantage) for group, advantage in pairs for index in range(len(group.completions)))
    return tuple(islice(rows, most))


def _row(group: Group, index: int, advantages: Tensor | None) -> CompletionRow:
    completion = group.completions[index]
    score = group.scores[index] if group.scores else None
    valid = score is not None and score.valid
    last = len(completion.ids) - 1
    return CompletionRow(
        group.prompt.text,
        completion.text,
        score.reward if score is not None and valid else None,
        float(advantages[index, last]) if advantages is not None and valid and last >= 0 else None,
        " ".join(f"{name}={value:g}" for name, value in (score.parts if score else {}).items() if value is not None),
        len(completion.ids),
        completion.ended,
    )
