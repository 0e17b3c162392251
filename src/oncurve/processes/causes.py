"""Causes: why a process or a call has ended, in words. This module imports the standard library only."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

LONGEST_MESSAGE = 4000
"""Characters of a traceback, from its end."""

LONGEST_LINE = 400


def how_it_ended(code: int, what: str = "it") -> str:
    """Say how `what`, a process with this exit code, has ended."""
    return f"{what} ended with exit code {code}" if code >= 0 else f"{what} was killed by signal {_name(-code)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def kind_of_fault(error: BaseException) -> str:
    """Return "memory", "exit" or "exception"."""
    return "memory" if isinstance(error, MemoryError) else "exit" if isinstance(error, SystemExit) else "exception"


def last_words(error: BaseException) -> str:
    """Return the traceback from where user code begins; a mistake in the settings is its message alone."""
    if type(error).__module__ == "oncurve.base.errors":
        return str(error)
    try:
        trace = error.__traceback__
        here = str(Path(__file__).parents[1])
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(here):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    except BaseException:  # an exception whose own methods raise
        text = f"{type(error).__name__} (its message cannot be shown)"
    return text[-LONGEST_MESSAGE:]


def in_a_line(error: BaseException) -> str:
    """Return type and message of an error as a part of a sentence; of a mistake in the settings its message alone."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # an exception whose own methods raise
        text = "its message cannot be shown"
    if type(error).__module__ == "oncurve.base.errors":
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text}"[:LONGEST_LINE]
