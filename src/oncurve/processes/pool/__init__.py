"""Killable worker processes, in which user code runs with a deadline and a memory limit.

    pool = WorkerPool("oncurve.rewards.functions.math:Checker", {"answer": "answer"}, processes=2, timeout_seconds=10)
    replies = pool.run([{"completion": "4", "answer": "4"}, ...])       # one WorkerReply per item, in order

Covered: exceptions of any kind, `sys.exit`, `os._exit`, crashes, endless loops (also in C code that holds the
interpreter lock), sleeping, huge allocations, printing, lines written to the channel, forked children, and the death of
the parent by kill -9. The processes that user code starts end with its worker, also daemons in sessions of their own
(Linux).
Not covered: this is no sandbox. Malicious code can still do what this user may do. A container or a service that user
code requests outlives it, and so does a daemon where the supervisor was killed together with the worker.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.processes.pool.pool import Job, WorkerPool
    from oncurve.processes.pool.worker import WorkerReply

__getattr__, _ = lazily(__name__)  # a worker imports its own side alone
