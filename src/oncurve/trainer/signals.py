"""Ctrl-C and SIGTERM: finish the step within a grace time, else abandon it; the second signal ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

__all__ = ["StepAbandonedError", "StopSignals"]

SHOW_CURSOR = "\x1b[?25h"


class StepAbandonedError(BaseException):
    """The running step took longer than the grace time after a stop signal; nothing of it is kept.

    A BaseException, so that no handler of ordinary errors on the way swallows it.
    """


class StopSignals:
    """While active, the first SIGINT or SIGTERM sets `requested`; a step that runs `grace_seconds` longer is dropped.

    Outside the main thread (a notebook's worker, a test) Python delivers no signals, and nothing is installed.
    The last checkpoint is valid in every case, because checkpoints are renamed into place whole.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._saving = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what runs in the background
                    self._before[number] = signal.signal(number, self._stop)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._abandon)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def unabandoned(self) -> Iterator[None]:
        """Inside, a first signal waits: the step is over, and what it leaves behind is written whole."""
        self._saving = True
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        yield
        self._saving = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            _say("ended at once; checkpoints are whole", cursor=True)
            os._exit(128 + number)  # the second signal: at once, whatever is running
        self.requested = signal.Signals(number)
        _say(f"{self.requested.name}: finishing this step, {self.grace_seconds:g} seconds at most; again ends at once")
        if not self._saving:
            signal.setitimer(signal.ITIMER_REAL, max(self.grace_seconds, 1e-3))

    def _abandon(self, number: int, frame: FrameType | None) -> None:
        raise StepAbandonedError


def _say(text: str, cursor: bool = False) -> None:
    """A line on stderr, past Python's buffers: a handler may interrupt one that is being written to.

    `cursor`: show the cursor again, which a live display had hidden and cannot show any more.
    """
    with suppress(OSError):
        os.write(2, f"\n{SHOW_CURSOR if cursor and os.isatty(2) else ''}oncurve: {text}\n".encode())
