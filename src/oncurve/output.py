"""The one door through which oncurve's words leave the process: they cannot steer a terminal, and cannot end a run.

A message may quote anything: a column's name, a model's text, what a reward raised. `visible` writes control characters
and marks of direction as escapes, so that no quotation clears the screen, sets the title or fills the clipboard. And
the reader may be gone (`| head`, a full disk, a terminal that hung up): a stream that refuses is silent from then on.

What is covered: everything that goes through `sys.stdout` and `sys.stderr` of the command (`installed`), what workers
print (`worker_stderr`), what `oncurve.display.Screen` draws, what signal handlers say (`urgent`). What is not: what
user code or a library writes to the file descriptors of this process itself.
"""

from __future__ import annotations

import atexit
import codecs
import io
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = [
    "Plain",
    "Terminal",
    "complain",
    "installed",
    "live",
    "make_visible",
    "own_process",
    "process_is_own",
    "say",
    "urgent",
    "visible",
    "warn",
    "worker_stderr",
]

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHOW_CURSOR = "\x1b[?25h"


def visible(text: str) -> str:
    r"""`text` with control characters (C0, C1), marks of direction and lone surrogates as escapes; newline, tab stay.

    Example: `visible("\x1b[2J")` is `"\\x1b[2J"`, with a backslash. What is visible already is not changed again.
    """
    return _STEERING.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def say(text: str = "") -> None:
    """One line on standard output."""
    _line(sys.stdout, text)


def complain(text: str) -> None:
    """One line on standard error."""
    _line(sys.stderr, text)


def warn(text: str) -> None:
    """A warning of Python's, of the caller's caller."""
    warnings.warn(visible(text), stacklevel=3)


def make_visible(record: logging.LogRecord) -> bool:
    """A filter for loggers: the record's message made visible. Always True."""
    record.msg, record.args = visible(record.getMessage()), ()
    return True


def _line(stream: Any, text: str) -> None:
    Plain(stream).write(f"{text}\n")


def _target(stream: Any) -> Any:
    """The stream below our wrappers, and below the one that a live display puts in the stream's place."""
    while True:
        below = stream.below if isinstance(stream, _Forgiving) else getattr(stream, "rich_proxied_file", None)
        if below is None:
            return stream if not isinstance(stream, _Forgiving) else None
        stream = below


class _Forgiving(io.TextIOBase):
    """A text stream whose writes do not fail: once the stream below refuses, what is written is dropped."""

    @property
    def below(self) -> Any:
        """The stream that is written to; None where the process was started without one."""
        raise NotImplementedError

    def write(self, text: str) -> int:
        """Write and flush; returns the length of `text`, whether it got out or not."""
        self._try(lambda below: below.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush what is below."""
        self._try(lambda below: None)

    def _try(self, act: Callable[[Any], object]) -> None:
        below = self.below
        if below is None:
            return
        try:
            act(below)
            below.flush()
        except BlockingIOError:
            pass  # a pipe that is full for the moment
        except RuntimeError:
            pass  # a signal's handler came in the middle of a write
        except UnicodeError:
            act(_AsAscii(below))
        except (OSError, ValueError):
            _silence(below)

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        try:
            return bool(self.below is not None and self.below.isatty())
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """The descriptor of the stream below. Raises OSError where it has none."""
        if self.below is None:
            raise OSError("the process was started without this stream")
        return int(self.below.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return str(getattr(self.below, "encoding", None) or "utf-8")

    @property
    def errors(self) -> str:  # type: ignore[override]
        """How the stream below treats what it cannot encode."""
        return str(getattr(self.below, "errors", None) or "strict")


class _AsAscii:
    """A stream whose encoding cannot write a text gets it with question marks."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text.encode("ascii", "replace").decode())


class Terminal(_Forgiving):
    """Standard output as it is at each write, escape sequences included: for a display that draws on it."""

    @property
    def below(self) -> Any:
        """Whatever `sys.stdout` is by now."""
        return _target(sys.stdout)


class Plain(_Forgiving):
    """A stream that shows text and obeys none of it. It says that it is no terminal, so no library colours for it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def below(self) -> Any:
        """The stream it was made for."""
        return self._stream

    def write(self, text: str) -> int:
        """Write `text`, made visible."""
        super().write(visible(text))
        return len(text)

    def isatty(self) -> bool:
        """False."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _silence(stream: Any) -> None:
    """Send a standard stream that refuses to nowhere: what waits in its buffers would fail again at exit."""
    if stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@contextmanager
def installed() -> Iterator[None]:
    """Inside, `sys.stdout` and `sys.stderr` are `Plain`. For the command, whose process is its own.

    Descriptors 0 to 2 that the process was started without are opened to nowhere first: else the next file that is
    opened, a log or a checkpoint, would take the number and be written to by what prints.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without π shows a question mark
    sys.stdout, sys.stderr = Plain(before[0]), Plain(before[1])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


_own = False


@contextmanager
def own_process() -> Iterator[None]:
    """Inside, this process is the command's own, and may be ended. Python code that calls oncurve keeps its process.

    A reader that is gone is an error of a write from here on, not the end of the process.
    """
    global _own
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it, unless the caller changed it
    before, _own = _own, True
    try:
        yield
    finally:
        _own = before


def process_is_own() -> bool:
    """Whether this process is the command's own."""
    return _own


_displays: list[Callable[[str], None]] = []


@contextmanager
def live(show: Callable[[str], None]) -> Iterator[None]:
    """Inside, what is urgent goes to `show`: a live display would draw over what is written past it."""
    _displays.append(show)
    try:
        yield
    finally:
        _displays.remove(show)


def urgent(text: str, *, last: bool = False) -> None:
    """A line from a signal's handler, past Python's buffers: it may interrupt one that is being written to.

    `last`: nothing else will be shown; the cursor, which a live display has hidden, is shown again.
    """
    if _displays and not last:
        _displays[-1](text)
        return
    stream = _target(sys.stderr)
    if stream is not None and stream is not sys.__stderr__:  # a notebook's
        with suppress(Exception):
            stream.write(f"\n{visible(text)}\n")
    elif stream is not None:
        with suppress(OSError):
            os.write(2, f"\n{_SHOW_CURSOR if last and os.isatty(2) else ''}{visible(text)}\n".encode())


_relay_lock = threading.Lock()
_relay: int | None = None


def worker_stderr() -> int:
    """The descriptor for the standard error of worker processes; what they print comes out of `complain`'s door.

    One pipe for all of them, read by a thread: a worker's print can then neither fail nor steer the terminal.
    """
    global _relay
    with _relay_lock:
        if _relay is None:
            reading, _relay = os.pipe()
            thread = threading.Thread(target=_pass_on, args=(reading,), name="worker output", daemon=True)
            thread.start()
            atexit.register(_drain, _relay, thread)
        return _relay


def _drain(writing: int, thread: threading.Thread) -> None:
    os.close(writing)
    thread.join(timeout=1)  # a process that outlived its worker may hold the other end open


def _pass_on(reading: int) -> None:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while said := os.read(reading, 1 << 16):
        Plain(sys.stderr).write(decode(said))
