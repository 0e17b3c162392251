"""The process between a worker and the vLLM server that it starts, and a folder that both use.

    worker ----pipe----> minder ----starts----> vllm serve ... ----starts----> its engines

    minder = Minder({}, nbytes=10**9)       a folder for temporary files, and a process that removes it in the end
    minder.start(["vllm", "serve", ...])    the server
    minder.close()

When the worker closes it or ends, in whatever way, the minder kills the server with all processes that it has started,
and removes the folder. It does the same where the server ends by itself: the engines of a vLLM server that is killed
would go on. Then it ends as the server did.

This file is what the minder runs, and so it imports nothing heavy.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from oncurve.base.closing import reap
from oncurve.processes.spawn import END, become_supervisor, end_with, exit_as, how_it_ended, start_python, supervise

_END_SECONDS = 5.0
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
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        self._process = start_python(
            "oncurve.processes.minder:mind",
            str(self.folder),
            str(os.getpid()),
            stdin=subprocess.PIPE,
            stdout=self._log,
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
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        self._log.seek(0)
        words = first_cause(self._log.read().decode(errors="replace"))
        return f"{how_it_ended(code, 'the vLLM server')}{': ' * bool(words)}{words[:_LONGEST_WORDS]}"

    def close(self) -> None:
        """End the server and remove the folder. Twice is allowed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it may wait for its order
        self._process.send_signal(END)
        if reap(self._process, _END_SECONDS) is None:
            self._process.kill()  # the server ends with it
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def first_cause(log: str) -> str:
    """Return the error in a server's output from which the others follow: the first one that is logged or raised, with
    the indented lines after it, or else the last line.
    """
    found = _ERROR.search(log)
    return " ".join(found[1].split()) if found else log.strip().rpartition("\n")[2].strip()


def mind(path: str, worker: str) -> NoReturn:
    """Run the command that comes on standard input until it or the process `worker` ends; then remove the folder.

    The signals by which a scheduler ends all processes of a job stay blocked: the end of the worker follows.
    """
    become_supervisor(int(worker))
    own, status = os.getpid(), None

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        end_with(own)

    try:
        if order := sys.stdin.readline():
            server = subprocess.Popen(json.loads(order), stdin=subprocess.DEVNULL, preexec_fn=prepare)
            status = supervise(server.pid)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    exit_as(status)
