"""Processes that tests start: none outlives its test, whether that passes or fails."""

import subprocess
from contextlib import suppress
from typing import Any

import psutil

_STARTED: list["subprocess.Popen[Any]"] = []


def start_process(*words: object, **how: Any) -> "subprocess.Popen[Any]":
    """Start a process that `end_processes` ends after the test."""
    process = subprocess.Popen([str(word) for word in words], **how)
    _STARTED.append(process)
    return process


def end_processes() -> None:
    """Kill what is left of the processes that a test has started and of theirs, and wait for them."""
    while _STARTED:
        with _STARTED.pop() as process, suppress(psutil.NoSuchProcess):
            if process.poll() is None:
                for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                    one.kill()
