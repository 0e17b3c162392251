"""Killable worker processes: user code runs in them under a deadline, a memory limit, and out of harm's way.

    pool = WorkerPool("oncurve.rewards.math:checker", {"answer": "answer"}, processes=2, timeout_seconds=10)
    replies = pool.run([{"completion": "4", "answer": "4"}, ...])       # one Reply an item, in order

What is covered: exceptions of any kind, `sys.exit`, `os._exit`, crashes, endless loops (also in C code that holds the
interpreter lock), sleeping, huge allocations, printing, lines written to the channel, forked children, the death of the
parent by kill -9; what user code starts dies with its worker, daemons in sessions of their own too (Linux).
What is not: a sandbox. Code that means harm can still do what this user may do; what it asks others to start for it
(a container, a service) outlives it, and so does a daemon where the supervisor was killed together with the worker.
"""

from __future__ import annotations

from oncurve.workers.pool import Job, WorkerPool
from oncurve.workers.process import Reply
from oncurve.workers.serve import last_words

__all__ = ["Job", "Reply", "WorkerPool", "last_words"]
