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

The nursery ends its processes when the fleet does, also those that are stopped; and the kernel ends them with the
nursery.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import sys
from typing import Any, NoReturn

from oncurve.base.output import complain
from oncurve.processes.causes import how_it_ended, last_words
from oncurve.processes.fleets.recipe import made_here
from oncurve.processes.fleets.serving import BEAT_SECONDS, SEND_SECONDS, explained, serve
from oncurve.processes.spawn import FOR_THE_RUN, end_with, unblock

_LONGEST_MESSAGE = 1 << 12


def main(descriptor: str, folder: str) -> NoReturn:
    """The nursery's life, over the control socket with this descriptor. The object's recipe comes on standard input.
    When the other end is closed, because its process was killed or has no more use for it, it removes the `folder`."""
    control = int(descriptor)
    end = socket.socket(fileno=control)
    end.set_inheritable(False)
    end.settimeout(SEND_SECONDS)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, *FOR_THE_RUN):
        signal.signal(number, lambda *ignored: None)  # not SIG_IGN, which programs that are started here would inherit
    unblock()
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        made, _ = made_here(same_machine=True)
    except BaseException as error:
        _tell(end, "failed", explained(error))
        os._exit(1)
    gc.collect()
    gc.freeze()  # a fork that collects garbage would write to all objects, and have a copy of their pages
    _tell(end, "ready")
    running: dict[int, int] = {}
    try:
        while True:
            readable, _, _ = select.select([control, woken], [], [], BEAT_SECONDS)
            _tell(end, "beat")
            if woken in readable:
                os.read(woken, 1 << 12)
            _bury(end, running)
            if control in readable:
                message, descriptors, _, _ = socket.recv_fds(end, _LONGEST_MESSAGE, 1)
                if not message:
                    break
                process, _, gpus = message.decode().partition(" ")
                running[_fork(made, descriptors[0], end, gpus)] = int(process)
                os.close(descriptors[0])
    finally:
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _bury(end: socket.socket, running: dict[int, int]) -> None:
    """Tell the fleet of the processes that have ended, and how."""
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        code = os.waitstatus_to_exitcode(status)
        _tell(end, "ended", str(running.pop(child)), how_it_ended(code))


def _tell(end: socket.socket, *words: str) -> None:
    with contextlib.suppress(OSError):  # the fleet has ended: the next message from it says so
        end.send("\0".join(words).encode()[-_LONGEST_MESSAGE:])


def _fork(made: Any, descriptor: int, control: socket.socket, gpus: str) -> int:
    """Fork a process that serves `made` on the socket `descriptor` and sees these `gpus`, if there are any; its id."""
    nursery = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with(nursery)
        control.close()
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # CUDA reads it when it is first used
        serve(made, socket.socket(fileno=os.dup(descriptor)))
    except BaseException as error:
        complain(last_words(error))
        sys.stderr.flush()
    os._exit(1)
