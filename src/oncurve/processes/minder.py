"""The process between a worker and the vLLM server that it starts, and a folder that both use.

    worker ----pipe----> minder ----starts----> vllm serve ... ----starts----> its engines

    minder = Minder({}, nbytes=10**9)       a folder for temporary files, and a process that removes it in the end
    minder.start(["vllm", "serve", ...])    what it prints goes to the folder's file `server.log`
    minder.close()

When the pipe closes, because the worker closes it or ends in whatever way, the minder kills the server with all
processes that it has started, and removes the folder. The engines of a vLLM server that is killed go on: the minder
kills them also where the server ends by itself.

This file is what the minder runs, and so it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from oncurve.base.closing import reap
from oncurve.processes.spawn import FOR_THE_RUN, end_with, start, start_python, unblock

_LOG, _ENDED = "server.log", "ended"
_TURN_SECONDS, _END_SECONDS, _POLL_SECONDS = 60.0, 5.0, 0.02
_LONGEST_WORDS = 300

IN_MEMORY = "/dev/shm"
"""A file system in memory, where the system has one."""

# "ValueError: ..." at the beginning of a line, or after the words that vLLM puts before a line: process and log record.
_ERROR = re.compile(
    r"^(?:\([^()\n]*\) )?(?:ERROR [^\]\n]*\] )?((?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?:: .*)?(?:\n +\S.*)*)$",
    re.MULTILINE,
)


class Minder:
    """A minder as its worker sees it.

    environment  variables that the server gets in addition
    nbytes       of the files to come: the folder is in memory where that has room for twice as many

    Raises OSError: there is no room for the folder.
    """

    def __init__(self, environment: Mapping[str, str], nbytes: int = 0) -> None:
        roomy = os.path.isdir(IN_MEMORY) and shutil.disk_usage(IN_MEMORY).free > 2 * nbytes
        self.folder = Path(tempfile.mkdtemp(prefix="oncurve-vllm-", dir=IN_MEMORY if roomy else None))
        self._log = self.folder / _LOG
        with self._log.open("wb") as output:
            self._process = start_python(
                "oncurve.processes.minder:mind",
                str(self.folder),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # whoever kills the worker's process group leaves the minder to clear up
                env={**os.environ, **environment},
            )

    def start(self, command: Sequence[str]) -> None:
        """Have the server started, the only one of this minder."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the minder has ended: `ending` says so
            self._process.stdin.write(json.dumps(list(command)).encode() + b"\n")
            self._process.stdin.flush()

    def ending(self, seconds: float = 0.0) -> str:
        """Return how the server has ended, and why as far as its output says; "" where it has not within `seconds`."""
        deadline = time.monotonic() + seconds
        while (code := self._code()) is None:
            if time.monotonic() >= deadline:
                return ""
            time.sleep(_POLL_SECONDS)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        words = first_cause(self._log.read_text(errors="replace")) if self._log.is_file() else ""
        return f"the vLLM server ended ({how}){': ' * bool(words)}{words[:_LONGEST_WORDS]}"

    def close(self) -> None:
        """End the server and remove the folder. Twice is allowed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the server ends with it
            reap(self._process, _END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _code(self) -> int | None:
        """Return the exit code of the server, or of the minder where that has ended first; None: neither has ended."""
        with contextlib.suppress(FileNotFoundError):
            return int((self.folder / _ENDED).read_text())
        return self._process.poll()


def first_cause(log: str) -> str:
    """Return the error in a server's output from which the others follow: the first one that is logged or raised, with
    the indented lines after it, or else the last line.
    """
    found = _ERROR.search(log)
    return " ".join(found[1].split()) if found else log.strip().rpartition("\n")[2].strip()


def mind(path: str) -> None:
    """Run the command that comes on standard input until it ends; remove the folder when standard input is closed.

    A scheduler ends a job by a signal to all its processes: the minder waits for the end of the worker all the same.
    """
    folder = Path(path)
    for number in FOR_THE_RUN:
        signal.signal(number, lambda *ignored: None)  # the server does not inherit it
    unblock()
    try:
        if order := sys.stdin.readline():
            _serve(json.loads(order), folder)
    except OSError as error:  # there is no such command
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        _tell(folder, 1)
        _until_closed(sys.stdin.fileno())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(command: Sequence[str], folder: Path) -> None:
    pipe = sys.stdin.fileno()
    ends = partial(end_with, os.getpid())
    server = start(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=ends)
    closed = _until_closed(pipe, os.pidfd_open(server.pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    try:
        code = server.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:  # the kernel ends it later
        code = -signal.SIGKILL
    if not closed:
        _tell(folder, code)
        _until_closed(pipe)


def _tell(folder: Path, code: int) -> None:
    """Say how the server has ended."""
    (folder / "ending").write_text(str(code))
    (folder / "ending").rename(folder / _ENDED)


def _until_closed(pipe: int, *others: int) -> bool:
    """Return whether the pipe has closed, as soon as it has, or as soon as one of `others` can be read."""
    while True:
        ready, _, _ = select.select([pipe, *others], [], [], _TURN_SECONDS)
        if ready:
            return pipe in ready
