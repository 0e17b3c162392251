"""Start processes, tie their end to the end of this one, and say in words why a process or a call has ended.

    child = start_python("oncurve.processes.minder:mind", str(folder))
    end_with(parent)                        in the child: the kernel ends it when its parent ends, however that ends

This module begins with the standard library alone, so that what it starts begins quickly and stays small.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from oncurve.base.closing import reap

FOR_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals for the run's own process, also where a scheduler or a terminal sends them to all its processes."""

END = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGTERM
"""The signal at which a supervisor ends its child, all that this has started, and itself; no other code uses it."""

LONGEST_MESSAGE = 1 << 12
"""Bytes of a message between a fleet and its nursery."""

WATCHED: set[int] = {signal.SIGCHLD, END}
"""The signals that a supervisor blocks before it starts its child, and waits for."""

_TOLD_SECONDS, _END_SECONDS = 60.0, 5.0
_LONGEST_TRACE, _LONGEST_LINE = 4000, 400
"""Characters of a traceback, from its end, and of a message in a sentence."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_BOOT = (
    "import sys; from importlib import import_module; sys.path.append(sys.argv[1]); "
    "module, _, name = sys.argv[2].partition(':'); getattr(import_module(module), name)(*sys.argv[3:])"
)


def start_python(target: str, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start a Python process that calls `target`, as in `"module:function"`, with `arguments`.

    What it prints to standard output is lost, unless `settings` say otherwise. The signals `FOR_THE_RUN` are blocked in
    it until it has decided about them and calls `unblock`. Raises OSError.
    """
    source = str(Path(__file__).parents[2])
    settings = {"stdout": subprocess.DEVNULL, **settings}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_RUN)
    try:
        return subprocess.Popen([sys.executable, "-P", "-c", _BOOT, source, target, *arguments], **settings)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def feed(child: subprocess.Popen[bytes], data: bytes) -> None:
    """Write `data`, which may be as large as a model, to a child's standard input, and close it, in a thread."""

    def work() -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError), child.stdin as stdin:  # it has ended
            stdin.write(data)

    threading.Thread(target=work, daemon=True).start()


def unblock() -> None:
    """Take the signals that `start_python` has blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_RUN)


def ending(child: subprocess.Popen[bytes], seconds: float = _END_SECONDS) -> str:
    """Return how a child that is ending has ended, in words; end it after so many `seconds`."""
    try:
        return how_it_ended(child.wait(seconds))
    except subprocess.TimeoutExpired:
        child.kill()
        reap(child, _END_SECONDS)
        return "it closed its connection and did not end"


@contextlib.contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    """Within: these variables are set. The processes that are started meanwhile keep them."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Get the signal `number` when the thread of the process `parent` ends that has started this one.

    Where `parent` has ended already, this process ends at once.
    """
    _ask_kernel(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(0)


def begin_nursery(descriptor: str, target: str) -> NoReturn:
    """Begin a nursery's life, over the control socket with this descriptor, which tells it the fleet's process and a
    folder. If that process is killed, even while `target` is imported, it removes the folder and ends.
    """
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    control.settimeout(_TOLD_SECONDS)
    fleet, _, folder = control.recv(LONGEST_MESSAGE).decode().partition("\0")

    def leave(*ignored: object) -> NoReturn:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # the kernel ends its processes with it

    signal.signal(END, leave)
    _ask_kernel(_PR_SET_PDEATHSIG, END)
    if os.getppid() != int(fleet or 0):
        leave()
    module, _, name = target.partition(":")
    getattr(import_module(module), name)(control, leave)
    leave()


def become_supervisor(parent: int) -> None:
    """Become the parent of what is left of this process's children, and get the signal `END` when `parent` ends.

    The signals that `supervise` waits for are blocked from now on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _ask_kernel(_PR_SET_CHILD_SUBREAPER, 1)
    end_with(parent, END)


def supervise(child: int) -> int | None:
    """Wait for the end of a child, or for the signal `END`. Then end the child and all that it has started.

    Return the child's wait status; None: it was ended by order.
    """
    import psutil  # here: what is supervised begins without it

    status, ordered = None, False
    while status is None and not ordered:
        ordered = signal.sigwait(WATCHED) == END
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == child else status
    with contextlib.suppress(ChildProcessError):
        while True:  # the children of an ended child become ours
            for each in psutil.Process().children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    return status


def exit_as(status: int | None) -> NoReturn:
    """End as a child with this wait status has ended."""
    if status is not None and os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(0 if status is None else os.waitstatus_to_exitcode(status))


def _ask_kernel(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value)


def how_it_ended(code: int, what: str = "it") -> str:
    """Say how `what`, a process with this exit code, has ended."""
    return f"{what} ended with exit code {code}" if code >= 0 else f"{what} was killed by signal {_name(-code)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class LateError(Exception):
    """A coroutine has taken longer than its limit."""


def kind_of_fault(error: BaseException) -> str:
    """Return "memory", "exit", "timeout" or "exception"."""
    kinds = {MemoryError: "memory", SystemExit: "exit", LateError: "timeout"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "exception")


def last_words(error: BaseException) -> str:
    """Return the traceback from where user code begins; a mistake in the settings, or a limit, is its message alone."""
    if type(error).__module__ == "oncurve.base.errors" or isinstance(error, LateError):
        return str(error)
    try:
        trace = error.__traceback__
        ours = str(Path(__file__).parents[1]), f"{os.path.dirname(os.__file__)}/concurrent/"  # on the way to user code
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    except BaseException:  # an exception whose own methods raise
        text = f"{type(error).__name__} (its message cannot be shown)"
    return text[-_LONGEST_TRACE:]


def headline(words: str) -> str:
    """Return the first line of what `last_words` says of the error itself: its type, and how its message begins."""
    lines = words.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] + 1 if frames else 0 :]
    return next((line for line in after if not line.startswith(" ")), "")


def place_of(words: str) -> str:
    """Return the last line of the user's code that `last_words` names, ", game.py line 12"; "" if they name none."""
    ours, places = str(Path(__file__).parents[1]), re.findall(r'^  File "(.+)", line (\d+)', words, re.MULTILINE)
    return next((f", {file} line {line}" for file, line in reversed(places) if not file.startswith(ours)), "")


def in_a_line(error: BaseException) -> str:
    """Return type and message of an error as a part of a sentence; of a mistake in the settings its message alone."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # an exception whose own methods raise
        text = "its message cannot be shown"
    if type(error).__module__ == "oncurve.base.errors":
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text}"[:_LONGEST_LINE]
