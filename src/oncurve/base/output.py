"""All output of the command: it cannot steer a terminal, and cannot end a run.

A message may quote anything: a column's name, a model's text, a reward's exception. `visible` writes control characters
and marks of direction as escapes, so that no quotation clears the screen, sets the title or fills the clipboard. And
the reader may be gone (`| head`, a full disk, a closed terminal): a stream that fails writes nothing from then on.

Covered: `sys.stdout` and `sys.stderr` of the command (`installed`), the output of workers (`worker_stderr`), the
display of `oncurve.display.Screen`, and lines of signal handlers (`urgent`). Not covered: user code or a library that
writes to the file descriptors of this process itself.
"""

from __future__ import annotations

import atexit
import codecs
import io
import logging
import os
import re
import select
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHOW_CURSOR = "\x1b[?25h"


def visible(text: str) -> str:
    r"""Return `text` with control characters (C0, C1), marks of direction and lone surrogates as escapes; newline, tab
    stay.

    Example: `visible("\x1b[2J")` is `"\\x1b[2J"`, with a backslash. Visible text is unchanged.
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
    """A Python warning, located at the caller's caller."""
    warnings.warn(visible(text), stacklevel=3)


def make_visible(record: logging.LogRecord) -> bool:
    """Return a filter for loggers: the record's message made visible. Always True."""
    record.msg, record.args = visible(record.getMessage()), ()
    return True


def _line(stream: Any, text: str) -> None:
    Plain(stream).write(f"{text}\n")


def _target(stream: Any) -> Any:
    """Return the stream below our wrappers, and below the proxy of a live display."""
    while True:
        below = stream.below if isinstance(stream, _Forgiving) else getattr(stream, "rich_proxied_file", None)
        if below is None:
            return stream if not isinstance(stream, _Forgiving) else None
        stream = below


class _Forgiving(io.TextIOBase):
    """A text stream whose writes do not fail: after an error of the stream below, later text is dropped."""

    @property
    @abstractmethod
    def below(self) -> Any:
        """The stream below; None where the process was started without one."""

    def write(self, text: str) -> int:
        """Write and flush; returns the length of `text`, also where the write failed."""
        below = self.below
        if below is not None and _takes(below):
            try:
                below.write(text)
                below.flush()
            except (BlockingIOError, RuntimeError):
                pass  # a full pipe; a signal handler interrupted a write
            except UnicodeError:  # its encoding cannot hold the text
                with suppress(OSError, ValueError):
                    below.write(text.encode("ascii", "replace").decode())
            except (OSError, ValueError):
                _silence(below)
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self.write("")

    def writable(self) -> bool:
        """Return true."""
        return True

    def isatty(self) -> bool:
        """Return whether the stream below is a terminal."""
        try:
            return bool(self.below is not None and self.below.isatty())
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """Return the descriptor of the stream below. Raises OSError where it has none."""
        if self.below is None:
            raise OSError("the process was started without this stream")
        return int(self.below.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return str(getattr(self.below, "encoding", None) or "utf-8")

    @property
    def errors(self) -> str:  # type: ignore[override]
        """The error handler of the stream below for text that it cannot encode."""
        return str(getattr(self.below, "errors", None) or "strict")


_hurried = False


def hurry(frame: FrameType | None) -> None:
    """From now on drop text that a reader does not take at once. Raises BlockingIOError in a `frame` that waits so."""
    global _hurried
    _hurried = True
    while frame is not None:
        if frame.f_code is _Forgiving.write.__code__:
            raise BlockingIOError
        frame = frame.f_back


def _takes(stream: Any) -> bool:
    """Return whether a stream takes a line now: always true before `hurry`."""
    if not _hurried:
        return True
    try:
        return bool(select.select([], [stream.fileno()], [], 0)[1])
    except (OSError, ValueError):  # a stream without a descriptor, as a notebook's
        return True


class Terminal(_Forgiving):
    """The current `sys.stdout` at each write, with escape sequences: for a display that draws on it."""

    @property
    def below(self) -> Any:
        """The current `sys.stdout`, without wrappers."""
        return _target(sys.stdout)


class Plain(_Forgiving):
    """A stream that shows text without interpreting it. It is no terminal, so libraries write no colours to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def below(self) -> Any:
        """The wrapped stream."""
        return self._stream

    def write(self, text: str) -> int:
        """Write `text`, made visible."""
        super().write(visible(text))
        return len(text)

    def isatty(self) -> bool:
        """Return false."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _silence(stream: Any) -> None:
    """Redirect a standard stream that failed to the null device: its buffers would fail again at exit."""
    if stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@contextmanager
def installed() -> Iterator[None]:
    """Return a context in which `sys.stdout` and `sys.stderr` are `Plain`. For the command, which owns its process.

    Missing descriptors 0 to 2 are opened on the null device first. Else the next file, such as a log or a checkpoint,
    would take the number and receive the output.
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
    """Return a context in which the command owns this process and may end it. Python code that calls oncurve keeps its
    own.

    A missing reader is from now on an error of a write, not the end of the process. Ctrl-C counts wherever it comes:
    Python drops a KeyboardInterrupt that is raised in a `__del__` or a callback, so SIGINT is sent once more then; and
    within an import it ends the process at once: libraries make errors of their own of what is raised there, and C++
    aborts.
    """
    global _own
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it, unless the caller changed it
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, by a shell
            signal.signal(signal.SIGINT, _interrupt)
    before, _own = _own, True
    hook = sys.unraisablehook

    def interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            hook(dropped)

    sys.unraisablehook = interrupt_again
    try:
        with checkpoint_may_be_asked():
            yield
    finally:
        sys.unraisablehook = hook
        _own = before
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            urgent("oncurve: stopped by SIGINT", last=True)
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def process_is_own() -> bool:
    """Return whether this process is the command's own."""
    return _own


_asked = False


@contextmanager
def checkpoint_may_be_asked() -> Iterator[None]:
    """Return a context in which SIGUSR1, which asks a run for a checkpoint, is noted while nothing is trained yet.

    The handler of the training takes its place, and begins with what was noted (`checkpoint_was_asked`). A process that
    handles or ignores SIGUSR1 itself is left alone, and so is one outside the main thread.
    """
    global _asked
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        yield
        return
    _asked = False
    signal.signal(signal.SIGUSR1, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _note(number: int, frame: object) -> None:
    global _asked
    _asked = True
    urgent("oncurve: SIGUSR1: nothing is trained now; a run that begins writes a checkpoint after its first step")


def checkpoint_was_asked() -> bool:
    """Return whether SIGUSR1 came before the training, since the last call."""
    global _asked
    asked, _asked = _asked, False
    return asked


_displays: list[Callable[[str], None]] = []


@contextmanager
def live(show: Callable[[str], None]) -> Iterator[None]:
    """Return a context in which urgent lines go to `show`, because a live display would overwrite other output."""
    _displays.append(show)
    try:
        yield
    finally:
        _displays.remove(show)


def urgent(text: str, *, last: bool = False) -> None:
    """A line of a signal handler, written without Python's buffers, because it may interrupt a write to one.

    On a terminal it begins a line of its own, because a key's echo (^C) may stand there. `last`: this is the last
    output; the cursor, which a live display has hidden, is shown again.
    """
    if _displays and not last:
        _displays[-1](text)
        return
    stream = _target(sys.stderr)
    if stream is not None and stream is not sys.__stderr__:  # a notebook's
        with suppress(Exception):
            stream.write(f"{visible(text)}\n")
    elif stream is not None and _takes(stream):
        with suppress(OSError):
            begin = ("\n" + _SHOW_CURSOR * last) * os.isatty(2)
            os.write(2, f"{begin}{visible(text)}\n".encode())


_relay_lock = threading.Lock()
_relay: int | None = None


def worker_stderr() -> int:
    """Return the descriptor for the standard error of worker processes, whose output goes to standard error as `Plain`
    text.

    All workers share one pipe, which a thread reads: a worker's print can neither fail nor steer the terminal.
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
