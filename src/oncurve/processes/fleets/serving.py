"""The side of a fleet's process: do the calls that come, and say every second that it lives.

One thread does the calls in order, one takes them, and one sends heartbeats.
"""

from __future__ import annotations

import os
import socket
import threading
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from oncurve.base.errors import OncurveError
from oncurve.base.output import complain
from oncurve.parallel import LostRankError
from oncurve.processes.causes import in_a_line, last_words
from oncurve.processes.fleets.channel import Channel, ClosedError
from oncurve.processes.fleets.recipe import made_here
from oncurve.processes.spawn import end_with, unblock

BEAT_SECONDS = 1.0
SEND_SECONDS = 600.0
_TURN_SECONDS = 60.0


def main(descriptor: str, keeper: str) -> NoReturn:
    """Make the object of the recipe on standard input, and serve it on a socket with this descriptor.

    keeper   the process id of the keeper, with which this process ends
    """
    end_with(int(keeper))
    unblock()
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    try:
        made = made_here()
    except BaseException as error:
        Channel(end, SEND_SECONDS).send(("unmade", explained(error)))
        os._exit(1)
    serve(made, end)


def serve(made: Any, end: socket.socket) -> NoReturn:
    """Do the calls that come on the socket, in order, until it is closed. `made.begin()` is called first."""
    channel = Channel(end, SEND_SECONDS)
    calls: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_beat, args=(channel,), daemon=True).start()
    threading.Thread(target=_listen, args=(channel, calls), daemon=True).start()
    made.begin()
    channel.send(("up", os.getpid()))
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
    """Return what an error says, for a sentence of the run. Print where it began, unless it is raised on purpose."""
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
