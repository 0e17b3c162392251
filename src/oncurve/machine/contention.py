"""Shared processors: threads that wait for one another sleep while other processes use the processors too.

The threads of a parallel loop wait at its end for the last of them. GNU's OpenMP (libgomp, which PyTorch brings on
Linux) lets them spin for up to 300,000 rounds, some milliseconds, because the next loop usually begins before that.
Where another process uses one of their processors, spinning is harmful: a thread keeps its processor busy while the
thread that it waits for, which could run there, is queued on the other one. Every loop then takes a time slice of the
scheduler instead of microseconds, and a training step ten to forty times as long.

libgomp spins 100 rounds instead of 300,000 while there are more OpenMP threads than processors (libgomp's manual, under
`GOMP_SPINCOUNT`). `ShortWaits` creates and ends an idle team of threads for that; `watch` does so while this process's
threads wait for processors, which the kernel counts for each of them. The number of threads is constant, and with it
every bit.

A process of low priority (nice) makes no thread wait if it is of the same session. With the kernel's autogrouping
(`/proc/sys/kernel/sched_autogroup_enabled`, 1 on most desktops) priorities order the processes of one session (a
terminal), and sessions get equal shares: a process of another terminal is a neighbour whatever its priority. What
counts here is the waiting alone, so that such a process counts, too.

Covered: libgomp on Linux, loaded before or after this module; any number of threads above one. Not covered: other
OpenMP libraries, where nothing is changed and the notice names the setting that helps; other systems; a control group's
limit on processor time, under which no thread is in a queue.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

WINDOW_SECONDS = 0.25
TURN_SECONDS, END_SECONDS = 60.0, 5.0  # of a thread that waits for its end; for a thread that is to end
ENTER, LEAVE = 0.3, 0.2  # threads without a processor: next to a busy process 0.7 to 1 that spin, 0.35 that sleep
NOISE = 0.005  # the same per thread of a quiet machine
ENTER_WINDOWS, LEAVE_WINDOWS = 2, 8  # half a second begins contention, two seconds end it
NOTICE_WINDOWS = 40  # ten seconds more with contention than without give a notice


@dataclass(frozen=True)
class ProcessorReading:
    """Seconds counted up to `clock` (monotonic seconds).

    waited     by each thread of this process, while it was ready to run and had no processor
    all        of processor time used by all processes on the processors that this one may use, or taken by a hypervisor
    own        of processor time used by all threads of this process
    """

    clock: float
    waited: Mapping[str, float]
    all: float
    own: float


def read() -> ProcessorReading | None:
    """Return the counts up to now; None where the system has none (other than Linux)."""
    try:
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        waited = {task.name: _waited(task) for task in Path("/proc/self/task").iterdir()}
    except (OSError, AttributeError, ValueError):
        return None
    ticks = 0
    for name, *fields in (line.split() for line in lines if line.startswith("cpu")):
        if name in names:
            user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[:8])
            ticks += user + nice + system + interrupts + soft + stolen
    return ProcessorReading(time.monotonic(), waited, ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


def _waited(task: Path) -> float:
    """Return seconds on a run queue: the second number of the kernel's schedstat, in nanoseconds."""
    try:
        return int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        if task.exists():
            raise
        return 0.0  # the thread has ended meanwhile


def seconds_waiting(before: ProcessorReading, after: ProcessorReading) -> float:
    """Return seconds that threads of this process were ready and had no processor between two readings: Σ Δwaited, >=
    0.

    A thread that has begun since counts from 0, one that has ended does not.
    """
    return sum(max(0.0, now - before.waited.get(task, 0.0)) for task, now in after.waited.items())


def foreign(before: ProcessorReading, after: ProcessorReading) -> float:
    """Return processors that other processes kept busy between two readings, on average: Δ(all - own) / Δclock, >= 0.

    The processes that compute this run's rewards, and those of its `[cluster]`, are among them.
    """
    seconds = after.clock - before.clock
    used = after.all - before.all - after.own + before.own
    return max(0.0, used / seconds) if seconds > 0 else 0.0


@dataclass
class Contention:
    """The state of contention: `present`, and `windows` with contention minus those without.

    It begins after two windows in which `ENTER` threads or more waited on average, and ends after eight with fewer than
    `LEAVE`, so that short bursts change nothing.
    """

    threads: int
    present: bool = False
    windows: int = 0
    _turning: int = 0

    def take(self, waiting: float) -> bool:
        """Take the next window, in which this many threads waited; returns whether there is contention now."""
        beyond = waiting - NOISE * self.threads
        turns = beyond < LEAVE if self.present else beyond >= ENTER
        self._turning = self._turning + 1 if turns and self.threads > 1 else 0
        if self._turning == (LEAVE_WINDOWS if self.present else ENTER_WINDOWS):
            self.present, self._turning = not self.present, 0
        self.windows = max(0, self.windows + (1 if self.present else -1))
        return self.present


class ShortWaits:
    """Short waits of libgomp's threads, by an idle team that makes more OpenMP threads than processors.

    The team belongs to a thread of its own, at whose end libgomp ends it. `team` is its size with that thread.
    """

    def __init__(self, team: int) -> None:
        self.team = team
        self._over: threading.Event | None = None
        self._holder: threading.Thread | None = None

    def begin(self) -> bool:
        """Make waits short; returns whether that is possible: libgomp is loaded."""
        libraries = _libgomp()
        if libraries and self._holder is None:
            ready, self._over = threading.Event(), threading.Event()
            arguments = (libraries, ready, self._over)
            self._holder = threading.Thread(target=self._hold, args=arguments, name="oncurve-short-waits", daemon=True)
            self._holder.start()
            ready.wait(END_SECONDS)
        return bool(libraries)

    def end(self) -> None:
        """Let libgomp wait as by default."""
        if self._holder is not None and self._over is not None:
            self._over.set()
            self._holder.join(END_SECONDS)
        self._holder = self._over = None

    def _hold(self, libraries: list[ctypes.CDLL], ready: threading.Event, over: threading.Event) -> None:
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # of NULL: the team does nothing
        for library in libraries:
            library.GOMP_parallel(nothing, None, self.team, 0)
        ready.set()
        while not over.wait(TURN_SECONDS):
            pass


def _libgomp() -> list[ctypes.CDLL]:
    """Return the copies of libgomp in this process: PyTorch has its own, and so may other packages."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "libgomp" in line)
        libraries = [ctypes.CDLL(path) for path in paths if Path(path).name.startswith("libgomp")]
    except (OSError, IndexError):
        return []
    return [library for library in libraries if hasattr(library, "GOMP_parallel")]


class ContentionWatch:
    """Reads the counts four times a second, in a thread of its own, and makes waits short during contention.

    `read` is the source of the readings, each of which `observe` takes.
    """

    def __init__(self, threads: int, processors: int, read: Callable[[], ProcessorReading | None]) -> None:
        self.contention = Contention(threads)
        self.processors = processors
        self.waits = ShortWaits(max(2, processors - threads + 2))
        self.short = False
        self._read = read
        self._last = self._asked = read()
        self._notice: str | None = None
        self._noticed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncurve-processors", daemon=True)

    def start(self) -> None:
        """Begin, where the system has counts and there is more than one thread."""
        if self._last is not None and self.contention.threads > 1:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and restore libgomp."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        self.waits.end()

    def _run(self) -> None:
        while not self._over.wait(WINDOW_SECONDS):
            reading = self._read()
            if reading is not None:
                self.observe(reading)

    def observe(self, reading: ProcessorReading) -> None:
        """Take the window between the last reading and this one."""
        before, self._last = self._last, reading
        if before is None or reading.clock <= before.clock:
            return
        waiting = seconds_waiting(before, reading) / (reading.clock - before.clock)
        was, now = self.contention.present, self.contention.take(waiting)
        if now and not was:
            self.short = self.waits.begin()
        elif was and not now:
            self.waits.end()
            self.short = False
        others = foreign(before, reading)
        if self.contention.windows >= NOTICE_WINDOWS and others >= ENTER and not self._noticed:
            self._noticed = True
            self._notice = notice_text(self.contention.threads, self.processors, others, self.short)

    def waiting(self) -> float | None:
        """Return seconds that threads waited for a processor since the last call; None: the system does not count
        them.
        """
        before, now = self._asked, self._read()
        self._asked = now
        return None if before is None or now is None else seconds_waiting(before, now)

    def notice(self) -> str | None:
        """Return the notice of lasting contention: once, then None."""
        text, self._notice = self._notice, None
        return text


def notice_text(threads: int, processors: int, others: float, short: bool) -> str:
    """Return the notice of lasting contention. `short`: whether waits could be made short."""
    fewer = max(1, min(threads - 1, processors - max(1, round(others))))
    busy = (
        f"Other processes (reward workers and those of [cluster] among them) keep {others:.1f} of {processors} "
        f"processors busy, and the {threads} threads of this run wait for them: "
    )
    if short:
        return (
            f"{busy}steps take longer until they end, mostly less than twice as long; no result changes. To leave them "
            f"room, start with run.threads={fewer}, or with fewer processes of [cluster]"
        )
    return (
        f"{busy}steps can take more than ten times as long, because this OpenMP library's threads do not sleep while "
        f"they wait for one another. End the other work, or start with run.threads={fewer}"
    )


_lock = threading.Lock()
_watch: ContentionWatch | None = None


def watch(threads: int) -> None:
    """Begin to watch the processors, for a process with this number of threads. A process has one watch."""
    global _watch
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with _lock:
        if _watch is not None:
            _watch.stop()
        _watch = ContentionWatch(threads, processors, read)
        _watch.start()


def stop() -> None:
    """End the watch, and restore libgomp."""
    global _watch
    with _lock:
        if _watch is not None:
            _watch.stop()
        _watch = None


def waiting() -> float | None:
    """Return seconds that threads of this process were ready and had no processor, since this was last called.

    The first call counts from the beginning of the watch. None: there is no watch, or the system does not count them.
    """
    return None if _watch is None else _watch.waiting()


def notice() -> str | None:
    """Return the notice of lasting contention for the terminal: once per watch, then None."""
    return None if _watch is None else _watch.notice()
