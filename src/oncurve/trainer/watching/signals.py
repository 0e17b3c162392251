"""Ctrl-C, SIGTERM, SIGHUP: finish the step within a grace time, else abandon it; the second signal ends at once.

SIGUSR1 asks for a checkpoint after the running step; `TimeLimit` ends a run in order after a given time.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

from oncurve.base import output
from oncurve.base.errors import LostStateError, without_frames

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StepAbandonedError(BaseException):
    """The running step took longer than the grace time after a stop signal; nothing of it is kept.

    A BaseException, so that no handler of ordinary errors on the way swallows it.
    """


class TimeLimit:
    """A run's share of time, from now on: no step begins that would end later if it took as long as the longest so far.

    The first step is always begun.
    """

    name = "run.max_minutes"

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._before = time.monotonic()
        self._longest = 0.0

    def steps_begin(self) -> None:
        """Forget the time until now, such as that of a first evaluation: it is no step."""
        self._before = time.monotonic()

    @property
    def allows_a_step(self) -> bool:
        """Return whether a step that begins now ends in time."""
        return not self._longest or time.monotonic() + self._longest < self._end

    def step_ended(self) -> None:
        """A step with all that belongs to it has ended."""
        now = time.monotonic()
        self._longest, self._before = max(self._longest, now - self._before), now


class StopSignals:
    """While active, the first of `STOPPING` sets `requested`; a step that runs `grace_seconds` longer is dropped.

    The second one ends the command's own process (`output.own_process`) at once. A process that only calls oncurve,
    such as a notebook's kernel, goes on: SIGINT raises KeyboardInterrupt there, as always, the others SystemExit.

    SIGUSR1 asks for a checkpoint: `checkpoint_wanted` is then True once; one that came before counts, too.

    Outside the main thread (a notebook's worker, a test) Python delivers no signals, and nothing is installed.
    The last checkpoint is valid in every case, because checkpoints are renamed into place whole.
    """

    def __init__(self, grace_seconds: float, max_minutes: float | None = None) -> None:
        self.grace_seconds = grace_seconds
        self.limit = TimeLimit(max_minutes)
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._hook = sys.unraisablehook
        self._saving = False
        self._checkpoint = output.checkpoint_was_asked()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what runs in the background
                    self._before[number] = signal.signal(number, self._stop)
            self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._want_checkpoint)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._abandon)
            self._before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a reader that is gone
            sys.unraisablehook = self._abandon_again
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def unabandoned(self) -> Iterator[None]:
        """Inside, a first signal waits, so that the files of the finished step are written whole; then it has ended."""
        self._saving = True
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            self._saving = False
            self.limit.step_ended()

    @contextmanager
    def at_the_end(self, save: Callable[[], None]) -> Iterator[None]:
        """Inside, an abandoned step ends the block quietly; whatever ends it, `save` is called then.

        Where an error ended it, that is raised, whatever becomes of `save`. State that is lost after a stop signal ends
        the block quietly, too: the run has an earlier checkpoint, and is to end.
        """
        try:
            yield
        except StepAbandonedError:
            pass
        except BaseException as error:
            with self.unabandoned(), suppress(Exception):
                save()
            if self.requested is None or not isinstance(error, LostStateError):
                raise
            return
        with self.unabandoned():
            try:
                save()
            except LostStateError:
                if self.requested is None:
                    raise

    @property
    def allow_a_step(self) -> bool:
        """Return whether another step may begin: no signal came, and it would end within `max_minutes`."""
        return self.requested is None and self.limit.allows_a_step

    def stopped_by(self, is_done: bool) -> str | None:
        """Return the name of the signal that came, else of the setting that ended a run which is not done; None:
        neither.
        """
        if self.requested is not None:
            return self.requested.name
        return None if is_done else TimeLimit.name

    def checkpoint_wanted(self) -> bool:
        """Return whether SIGUSR1 came since the last call."""
        wanted, self._checkpoint = self._checkpoint, False
        return wanted

    def _want_checkpoint(self, number: int, frame: FrameType | None) -> None:
        self._checkpoint = True
        output.urgent("oncurve: SIGUSR1: a checkpoint is written after this step")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            self._end(signal.Signals(number))
        self.requested = signal.Signals(number)
        grace = f"{self.grace_seconds:g} seconds at most (run.grace_seconds)"
        output.urgent(f"oncurve: {self.requested.name}: finishing this step, {grace}; again ends at once")
        if not self._saving:
            signal.setitimer(signal.ITIMER_REAL, max(self.grace_seconds, 1e-3))
        output.hurry(frame)

    def _end(self, number: signal.Signals) -> None:
        """The second signal: at once, whatever is running."""
        if output.process_is_own():
            output.urgent("oncurve: ended at once; checkpoints are whole", last=True)
            os._exit(128 + number)
        if number is signal.SIGINT:
            raise without_frames(KeyboardInterrupt("the run ended at once; its checkpoints are whole"))
        raise SystemExit(128 + number)

    def _abandon(self, number: int, frame: FrameType | None) -> None:
        raise StepAbandonedError

    def _abandon_again(self, dropped: sys.UnraisableHookArgs) -> None:
        """Raise a StepAbandonedError once more that Python dropped, because it came in a `__del__` or a callback."""
        if dropped.exc_type is StepAbandonedError:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            self._hook(dropped)
