"""A nursery as its fleet sees it: the process, its control socket, and what it says.

The nursery itself is nursery.py. When it ends, however it ends, its processes end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from oncurve.base.closing import reap
from oncurve.base.output import worker_stderr
from oncurve.processes.causes import how_it_ended
from oncurve.processes.fleets.devices import VISIBLE
from oncurve.processes.spawn import start_python

_MOMENT_SECONDS, _END_SECONDS = 0.5, 5.0
_NO_GPUS = {VISIBLE: "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class HostNursery:
    """A nursery that is started at once, with a `recipe` of its object: a file, which is read from its beginning. When
    the fleet ends, however it ends, the nursery removes its `folder`.

    With `hide_gpus` it sees none: CUDA must not be touched before its processes are forked and see their own.
    """

    def __init__(self, recipe: IO[bytes], folder: Path, hide_gpus: bool = False) -> None:
        recipe.seek(0)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(0.0)  # the nursery may wait until it is read from, and its reader is this process
        with theirs:
            self._process = start_python(
                "oncurve.processes.fleets.nursery:main",
                str(theirs.fileno()),
                str(folder),
                pass_fds=(theirs.fileno(),),
                stdin=recipe,
                stdout=subprocess.DEVNULL,
                stderr=worker_stderr(),
                process_group=0,  # Ctrl-C in the terminal is for this process, which ends the others in order
                env={**os.environ, "OMP_NUM_THREADS": "1", **(_NO_GPUS if hide_gpus else {})},
            )

    def fork(self, number: int, gpus: str = "") -> socket.socket:
        """This end of the connection to a process that is to be forked, and to see these `gpus`.

        Raises BlockingIOError: it has enough to do for now. OSError: the nursery has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [f"{number} {gpus}".encode()], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def heard(self) -> Iterator[list[str]]:
        """The words of each message that has come; a last one without words: it has ended."""
        words = ["beat"]
        while words:
            try:
                words = [word for word in self.control.recv(1 << 13).decode(errors="replace").split("\0") if word]
            except BlockingIOError:
                return
            except OSError:
                words = []
            yield words

    def kill(self) -> None:
        """End it and its processes at once, the stopped ones too."""
        if self._process.returncode is None:  # until it is waited for, no other group can have its number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def bury(self) -> str:
        """End what is left of it, of which the control socket is closed; how it has ended."""
        if self._process.returncode is None:
            self._has_exited(_MOMENT_SECONDS)  # of itself, so that its exit code is its own
        self.kill()  # its processes; it is not waited for yet
        code = reap(self._process, _END_SECONDS)
        self.control.close()
        return how_it_ended(code) if code is not None else "it cannot be ended"

    def shut(self) -> None:
        """Have it end its processes and itself: both ends of the control socket see that it is shut. Twice is
        allowed."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Shut it, and kill what has not ended within a few seconds."""
        self.shut()
        if self._process.returncode is None:
            self._has_exited(_END_SECONDS)
        self.bury()

    def _has_exited(self, seconds: float) -> bool:
        """Return whether it ends within so many seconds. It stays a zombie, so that its group keeps its number."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ChildProcessError):  # it is buried already
            while not os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
        return True
