"""The worker's side: load one callable, then answer items, one JSON line each, until the parent goes away.

Only the standard library and what the callable itself needs is imported here: workers start quickly and stay small.
The channel has file descriptors of its own, so nothing that user code prints can reach it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

LARGEST_REPLY_BYTES = 16 << 20  # a reply is a few numbers; more than this is a mistake that would only fill memory
LONGEST_MESSAGE = 4000  # characters of a traceback, from its end
_PR_SET_PDEATHSIG = 1
_PARENT_DIED = (
    signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGTERM
)  # one that user code has no use for
_PATIENCE_SECONDS = 60.0


def serve(request: int, reply: int, parent: int) -> NoReturn:
    """Answer the requests on descriptor `request` on descriptor `reply`; never returns. Called by `WorkerPool` only."""
    _settle_in(request, reply, parent)
    requests: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(request, requests), daemon=True).start()
    start = requests.get()
    try:
        function, about = _load(start)
        _send(reply, json.dumps({"ready": about}))
    except BaseException as error:
        _send(reply, json.dumps({"failed": last_words(error)}))
        os._exit(1)
    _limit_memory(start["memory_limit_bytes"])
    process = os.getpid()
    nowhere = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    while True:
        chunk = requests.get()
        # The parent kills us long before this; it is for C code that never lets go of the interpreter lock after the
        # parent died, when no thread and no signal handler of ours can run.
        faulthandler.dump_traceback_later(chunk["seconds"] + _PATIENCE_SECONDS, exit=True, file=nowhere)
        for item in chunk["items"]:
            line, spent = _answer(function, item)
            if os.getpid() != process:
                os._exit(0)  # a child that user code forked and let return: it must not answer in our name
            _send(reply, line)
            if spent:
                requests.get()  # nothing more is answered here: the parent replaces this worker when it reads that
        faulthandler.cancel_dump_traceback_later()


def _settle_in(request: int, reply: int, parent: int) -> None:
    for descriptor in (request, reply):
        os.set_inheritable(descriptor, False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker is killed, not asked to flush
    with contextlib.suppress(OSError):  # no stderr: what is printed goes nowhere
        os.dup2(2, 1)  # what user code prints goes to stderr: the parent's stdout may be read by a program
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background process may be stopped for printing to the terminal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the kernel takes the worker, not the run
    signal.signal(_PARENT_DIED, _end)  # a handler, not SIGKILL: what user code started has to go as well
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_PARENT_DIED))  # for C code that keeps our thread from running
    if os.getppid() != parent:
        os._exit(0)


def _end(*_: Any) -> None:
    """The parent is gone: end this process and all it started."""
    os.killpg(0, signal.SIGKILL)


def _read_requests(request: int, requests: SimpleQueue[Any]) -> None:
    """A thread, so that the end of the pipe (the parent is gone) is seen at once; requests wait in the queue."""
    with open(request, "rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    _end()


def _load(start: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """The callable that `factory(**settings)` makes, and what it says about itself (attribute `about`)."""
    sys.path[:] = start["sys_path"]
    from oncurve.spec import locate  # here: only now is the parent's import path in place

    function = locate(start["factory"], None)(**start["settings"])
    return function, getattr(function, "about", None)


def _limit_memory(limit: int | None) -> None:
    """Allow `limit` bytes of address space beyond what importing took: a library may map gigabytes it never touches."""
    if limit is None:
        return
    taken = 0
    with contextlib.suppress(OSError):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = taken + limit if hard == resource.RLIM_INFINITY else min(taken + limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _answer(function: Callable[[Any], Any], item: Any) -> tuple[str, bool]:
    """The line that answers `item`, and whether the memory ran out: what is kept would count against the next item."""
    try:
        value = function(item)
    except MemoryError as error:
        return _fault("memory", error), True
    except SystemExit as error:
        return _fault("exit", error), False
    except BaseException as error:  # user code may raise anything; none of it may end the worker
        return _fault("exception", error), False
    try:
        line = json.dumps({"value": value}, default=plain)
    except BaseException as error:
        return _fault("type", error), False
    if len(line) > LARGEST_REPLY_BYTES:
        line = json.dumps({"fault": "type", "message": f"the value is too large: {len(line)} bytes as JSON"})
    return line, False


def _fault(kind: str, error: BaseException) -> str:
    return json.dumps({"fault": kind, "message": last_words(error)})


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python's own, for JSON. Raises TypeError for anything else."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent to or from a worker: it is not JSON")


def last_words(error: BaseException) -> str:
    """The traceback from where user code begins; a mistake in the settings is its message alone."""
    if type(error).__module__ == "oncurve.errors":
        return str(error)
    try:
        trace = error.__traceback__
        here = os.path.dirname(os.path.dirname(__file__))
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(here):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    except BaseException:  # an exception whose own methods raise
        text = f"{type(error).__name__} (its message cannot be shown)"
    return text[-LONGEST_MESSAGE:]


def _send(reply: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(reply, data) :]
