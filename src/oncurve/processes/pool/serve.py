"""The worker's side: load one callable, then answer items, one JSON line each, until the parent ends.

This module imports the standard library only, so that workers start quickly and stay small. The channel has file
descriptors of its own, which the output of user code cannot reach.

There are two processes: a supervisor, which the parent started and which runs no user code, and the worker, forked from
it before anything is loaded. The kernel signals the supervisor when the parent dies, and the supervisor acts on it
whatever the worker does (also in C code that never releases the interpreter lock). Orphans of the worker become the
supervisor's children, so it ends every process that user code started, in any process group or session. It ends in the
same way as the worker.

A callable may return a future: then the worker goes on with the next item, and answers this one when it is done.
"""

import builtins
import contextlib
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from oncurve.processes.spawn import (
    WATCHED,
    become_supervisor,
    end_with,
    exit_as,
    kind_of_fault,
    last_words,
    supervise,
    unblock,
)

_sending = threading.Lock()
LARGEST_REPLY_BYTES = 16 << 20  # a reply is a few numbers; a larger one is a mistake that would fill memory


def serve(*numbers: str) -> NoReturn:
    """Answer the requests on one descriptor on another; `numbers` are these two, and the parent's process id."""
    request, reply, parent = map(int, numbers)
    _settle_in(request, reply)
    become_supervisor(parent)
    supervisor = os.getpid()
    worker = os.fork()
    if worker:
        os.close(request)
        os.close(reply)
        exit_as(supervise(worker))
    end_with(supervisor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the kernel takes the worker, not the run
    _work(request, reply)


def _work(request: int, reply: int) -> NoReturn:
    requests: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(request, requests), daemon=True).start()
    start = requests.get()
    secret = start["secret"]
    try:
        function, about = _load(start)
        _send(reply, json.dumps({"secret": secret, "ready": about}))
    except BaseException as error:
        _send(reply, json.dumps({"secret": secret, "failed": last_words(error)}))
        os._exit(1)
    _limit_memory(start["memory_limit_bytes"])
    _announce_imports(reply, secret)
    process, number = os.getpid(), 0
    while True:
        for item in requests.get()["items"]:
            answer, spent = _answer(function, item)
            if os.getpid() != process:
                os._exit(0)  # a child that user code forked and that returned must not answer
            begin = f'{{"secret": "{secret}", "number": {number}, '
            _send(reply, begin + (answer[1:] if isinstance(answer, str) else '"later": true}'))
            if not isinstance(answer, str):
                answer.add_done_callback(partial(_send_result, reply, process, begin))
            number += 1
            if spent:
                requests.get()  # the parent replaces this worker when it reads that reply


def _settle_in(request: int, reply: int) -> None:
    for descriptor in (request, reply):
        os.set_inheritable(descriptor, False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker is killed, not asked to flush
    with contextlib.suppress(OSError):  # no stderr: what is printed goes nowhere
        os.dup2(2, 1)  # user code prints to stderr: a program may read the parent's stdout
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background process may be stopped for printing to the terminal
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for the run, also where it is sent to all its processes
    unblock()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_requests(request: int, requests: SimpleQueue[Any]) -> None:
    """Run in a thread, which sees the end of the pipe (the parent has ended) at once; requests wait in the queue."""
    with open(request, "rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(0)  # the supervisor ends all processes


def _load(start: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """Return the callable `factory(**settings)`, and its attribute `about`."""
    sys.path[:] = start["sys_path"]
    from oncurve.base.imports import locate  # here: only now is the parent's import path in place

    function = locate(start["factory"], None)(**start["settings"])
    return function, getattr(function, "about", None)


def _announce_imports(reply: int, secret: str) -> None:
    """Tell the parent when a call begins to import a module and when that has ended: it is no part of the call's time.

    Other threads than this one, and processes that a call has forked, import without a word.
    """
    importing, process, thread = builtins.__import__, os.getpid(), threading.get_ident()
    busy = False

    def announced(name: str, *arguments: Any, **named: Any) -> Any:
        nonlocal busy
        if busy or name in sys.modules or (os.getpid(), threading.get_ident()) != (process, thread):
            return importing(name, *arguments, **named)
        busy = True
        _send(reply, json.dumps({"secret": secret, "importing": True}))
        try:
            return importing(name, *arguments, **named)
        finally:
            busy = False
            _send(reply, json.dumps({"secret": secret, "importing": False}))

    builtins.__import__ = announced


def _limit_memory(limit: int | None) -> None:
    """Allow `limit` bytes of address space beyond those after importing: libraries map gigabytes they never touch."""
    if limit is None:
        return
    taken = 0
    with contextlib.suppress(OSError):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = taken + limit if hard == resource.RLIM_INFINITY else min(taken + limit, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what is below the memory that it has mapped
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _send_result(reply: int, process: int, begin: str, future: Any) -> None:
    if os.getpid() != process:
        os._exit(0)
    _send(reply, begin + str(_answer(lambda _: future.result(), None)[0])[1:])


def _answer(function: Callable[[Any], Any], item: Any) -> tuple[Any, bool]:
    """Return the JSON object that answers `item`, or the future that will have the value; whether memory ran out, so
    that the worker is of no more use.
    """
    try:
        value = function(item)
    except BaseException as error:  # user code may raise anything; none of it may end the worker
        return _fault(kind_of_fault(error), error), isinstance(error, MemoryError)
    if hasattr(value, "add_done_callback"):
        return value, False
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
    """Return a number or an array of numpy or torch as Python's own, for JSON. Raises TypeError for anything else."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to or from a worker: it is not JSON")


def _send(reply: int, line: str) -> None:
    data = line.encode() + b"\n"
    try:
        with _sending:
            while data:
                data = data[os.write(reply, data) :]
    except BrokenPipeError:  # the pool is closed
        os._exit(0)
