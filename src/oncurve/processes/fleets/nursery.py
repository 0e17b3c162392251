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
import ctypes
import gc
import os
import select
import shutil
import signal
import socket
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import cloudpickle

from oncurve.base.errors import OncurveError
from oncurve.base.output import complain
from oncurve.parallel import LostRankError
from oncurve.processes.fleets.channel import Channel, ClosedError
from oncurve.processes.pool import in_a_line, last_words

BEAT_SECONDS = 1.0
FOR_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that are for the run's own process, also where a scheduler or a terminal sends them to all its processes."""

_PR_SET_PDEATHSIG = 1
_SEND_SECONDS = 600.0
_TURN_SECONDS = 60.0
_LONGEST_MESSAGE = 1 << 12


def main(control: int, folder: str) -> NoReturn:
    """The nursery's life, over the control socket with this descriptor. The object's recipe comes on standard input.
    When the other end is closed, because its process was killed or has no more use for it, it removes the `folder`."""
    end = socket.socket(fileno=control)
    end.set_inheritable(False)
    end.settimeout(_SEND_SECONDS)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, *FOR_THE_RUN):
        signal.signal(number, lambda *ignored: None)  # not SIG_IGN, which programs that are started here would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_RUN)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        made = _made()
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


def _made() -> Any:
    """The object of which this is the nursery."""
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    recipe = cloudpickle.load(sys.stdin.buffer)
    sys.path[:] = recipe["path"]
    from oncurve.base.imports import import_file

    for file in recipe["files"]:
        import_file(file)
    return cloudpickle.loads(recipe["make"])()


def _bury(end: socket.socket, running: dict[int, int]) -> None:
    """Tell the fleet of the processes that have ended, and how."""
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        code = os.waitstatus_to_exitcode(status)
        _tell(end, "ended", str(running.pop(child)), how_it_ended(code))


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"it ended with exit code {code}" if code >= 0 else f"it was killed by signal {_name(-code)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


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
        with contextlib.suppress(OSError, AttributeError):  # not Linux
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != nursery:
            os._exit(0)
        control.close()
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # CUDA reads it when it is first used
        serve(made, socket.socket(fileno=os.dup(descriptor)))
    except BaseException as error:
        complain(last_words(error))
        sys.stderr.flush()
    os._exit(1)


def serve(made: Any, end: socket.socket, remark: str = "") -> NoReturn:
    """Do the calls that come on the socket, in order, until it is closed. `made.begin()` is called first; the `remark`
    is sent with the message that this process is up."""
    channel = Channel(end, _SEND_SECONDS)
    calls: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_beat, args=(channel,), daemon=True).start()
    threading.Thread(target=_listen, args=(channel, calls), daemon=True).start()
    made.begin()
    channel.send(("up", os.getpid(), remark))
    while True:
        try:
            number, method, arguments = calls.get(timeout=_TURN_SECONDS)
        except Empty:
            continue
        answer: tuple[Any, ...]
        try:
            answer = ("replied", number, getattr(made, method)(*arguments))
        except LostRankError as error:
            answer = ("failed", number, str(error), True)
        except BaseException as error:
            channel.send(("failed", number, explained(error), False))
            os._exit(1)  # it may have left something half done
        channel.send(answer)


def explained(error: BaseException) -> str:
    """What an error says, for a sentence of the run. Where it began is said on standard error, unless it is one that is
    raised on purpose."""
    if not isinstance(error, OncurveError):
        complain(last_words(error))
    return in_a_line(error)


def _beat(channel: Channel) -> None:
    """Say that this process lives, whatever its other thread does. A stopped process says nothing."""
    waiting = threading.Event()
    while True:
        try:
            channel.send(("beat",))
        except ClosedError:
            os._exit(0)
        waiting.wait(BEAT_SECONDS)


def _listen(channel: Channel, calls: SimpleQueue[Any]) -> None:
    """Put the calls that come into `calls`; end this process where the channel is closed."""
    while True:
        try:
            for message in channel.arrived():
                calls.put(message)
        except ClosedError:
            os._exit(0)  # also in the middle of a call: its result is of no use any more
