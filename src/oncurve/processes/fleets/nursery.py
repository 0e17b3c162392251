"""The nursery: one process per machine that has imported everything and made the object, and forks processes of it.

    fleet ---- control ----> nursery          "start 7" with a socket; "ended 7, killed by signal SIGKILL"
      \\                        | fork
       +------ channel ----> process 7        calls, replies, heartbeats

Importing torch and transformers takes seconds, and a model may take minutes to load; a fork takes milliseconds. What
the object holds and is never written to, such as a reference's weights or the base of an adapter, is in memory once for
all forks. The nursery says every second that it lives, has one thread and makes no parallel computation, so that
forking is safe.

A process has two threads: one does the calls in order, the other says every second that the process lives. It ends when
the fleet does, and not by a signal that asks the run to end in order.

The nursery ends when the fleet does, and the kernel ends its processes with it, also those that are stopped.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from oncurve.base.output import complain, worker_stderr
from oncurve.processes.fleets.devices import VISIBLE
from oncurve.processes.fleets.serving import BEAT_SECONDS, SEND_SECONDS, explained, made_here, serve
from oncurve.processes.spawn import (
    FOR_THE_RUN,
    LONGEST_MESSAGE,
    end_with,
    ending,
    how_it_ended,
    last_words,
    start_python,
    unblock,
)

_MOMENT_SECONDS = 0.5
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
                "oncurve.processes.spawn:begin_nursery",
                str(theirs.fileno()),
                "oncurve.processes.fleets.nursery:live",
                pass_fds=(theirs.fileno(),),
                stdin=recipe,
                stderr=worker_stderr(),
                process_group=0,  # Ctrl-C in the terminal is for this process, which ends the others in order
                env={**os.environ, "OMP_NUM_THREADS": "1", **(_NO_GPUS if hide_gpus else {})},
            )
        _tell(self.control, str(os.getpid()), str(folder))  # not as an argument, which other users can read

    def fork(self, number: int, gpus: str = "") -> socket.socket:
        """Return this end of the connection to a process that is to be forked, and to see these `gpus`.

        Raises BlockingIOError: it has enough to do for now. ConnectionError: the nursery has ended.
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
        """Return the words of each message that has come; a last one without words: it has ended."""
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
        """End it, and with it its processes, the stopped ones too."""
        self._process.kill()

    def bury(self, seconds: float = _MOMENT_SECONDS) -> str:
        """End what has not ended of itself within so many `seconds`; return how it has ended."""
        self.control.close()
        return ending(self._process, seconds)

    def shut(self) -> None:
        """Have it end its processes and itself: both ends of the control socket see that it is shut. Twice is
        allowed."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)


def live(end: socket.socket, leave: Callable[[], NoReturn]) -> NoReturn:
    """Be the nursery, over its control socket, after `begin_nursery`. The object's recipe comes on standard input. When
    the other end is closed, because its process was killed or has no more use for it, it calls `leave`.
    """
    end.settimeout(SEND_SECONDS)
    for number in FOR_THE_RUN:
        signal.signal(number, lambda *ignored: None)  # not SIG_IGN, which programs that are started here would inherit
    unblock()
    try:
        made = made_here()
    except BaseException as error:
        _tell(end, "failed", explained(error))
        os._exit(1)
    gc.collect()
    end_with(os.getppid(), 0)  # from here on the socket says so, whatever thread has started this process
    gc.freeze()  # a fork that collects garbage would write to all objects, and have a copy of their pages
    _tell(end, "ready")
    watched = selectors.PollSelector()
    watched.register(end, selectors.EVENT_READ)
    while True:
        ready = [key for key, _ in watched.select(BEAT_SECONDS)]
        _tell(end, "beat")
        for key in ready:
            if key.fileobj is not end:
                child, process = key.data
                os.close(watched.unregister(key.fileobj).fd)
                _, status = os.waitpid(child, os.WNOHANG)
                _tell(end, "ended", process, how_it_ended(os.waitstatus_to_exitcode(status)))
                continue
            message, descriptors, _, _ = socket.recv_fds(end, LONGEST_MESSAGE, 1)
            if not message:
                leave()
            process, _, gpus = message.decode().partition(" ")
            child = _fork(made, descriptors[0], end, gpus)
            watched.register(os.pidfd_open(child), selectors.EVENT_READ, (child, process))
            os.close(descriptors[0])


def _tell(end: socket.socket, *words: str) -> None:
    with contextlib.suppress(OSError):  # the fleet has ended: the next message from it says so
        end.send("\0".join(words).encode()[-LONGEST_MESSAGE:])


def _fork(made: Any, descriptor: int, control: socket.socket, gpus: str) -> int:
    """Fork a process that serves `made` on the socket `descriptor` and sees these `gpus`, if there are any; its id."""
    nursery = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        end_with(nursery)
        control.close()
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # CUDA reads it when it is first used
        serve(made, socket.socket(fileno=os.dup(descriptor)))
    except BaseException as error:
        complain(last_words(error))
        sys.stderr.flush()
    os._exit(1)
