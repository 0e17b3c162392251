"""Contention from injected readings; libgomp's short waits as they are."""

import json
import os
import statistics
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from fakes.tables import table
from oncurve.machine.contention import (
    ENTER,
    LEAVE,
    LEAVE_WINDOWS,
    NOISE,
    NOTICE_WINDOWS,
    WINDOW_SECONDS,
    Contention,
    ContentionWatch,
    ProcessorReading,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and libgomp")
two_processors = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor: libgomp waits are always short")
BUSY, QUIET = 1.0, 0.05  # threads of two that wait


def after(contention: Contention, *windows: float) -> list[bool]:
    return [contention.take(waiting) for waiting in windows]


class Machine:
    """Readings of a machine on which this process waits, and others and it use processors, as they are said to."""

    def __init__(self) -> None:
        self.now = ProcessorReading(0.0, {"1": 0.0}, 0.0, 0.0)

    def __call__(self) -> ProcessorReading:
        return self.now

    def window(self, waiting: float, others: float = 0.0, own: float = 1.0) -> ProcessorReading:
        before, seconds = self.now, WINDOW_SECONDS
        waited = {"1": before.waited["1"] + waiting * seconds}
        all = before.all + (others + own) * seconds
        self.now = ProcessorReading(before.clock + seconds, waited, all, before.own + own * seconds)
        return self.now


@pytest.mark.parametrize(("threads", "waiting", "present"), table("processors", "contention"))
def test_what_is_contention(threads: int, waiting: float, present: bool) -> None:
    assert any(after(Contention(threads), *[waiting] * 100)) is present


@given(st.lists(st.floats(0, 2), max_size=80), st.integers(1, 4))
def test_contention_turns_only_on_a_row_of_windows_that_agree(windows: list[float], threads: int) -> None:
    contention = Contention(threads)
    present = [False, *after(contention, *windows)]
    for index in range(1, len(present)):
        beyond = [waiting - NOISE * threads for waiting in windows[:index]]
        if present[index] and not present[index - 1]:
            assert min(beyond[-2:]) >= ENTER
            assert threads > 1
        if present[index - 1] and not present[index]:
            assert len(beyond) >= LEAVE_WINDOWS
            assert max(beyond[-LEAVE_WINDOWS:]) < LEAVE


def watched(threads: int = 2, processors: int = 2) -> tuple[ContentionWatch, Machine]:
    machine = Machine()
    return ContentionWatch(threads, processors, machine), machine


def test_the_watch_says_once_that_a_neighbour_stays_and_never_that_a_quiet_machine_is_busy() -> None:
    watch, machine = watched()
    for number in range(2000):
        watch.observe(machine.window(0.8 if number % 3 == 0 else 0.1))  # bursts, as every machine has them
    assert (watch.short, watch.notice()) == (False, None)
    said = []
    try:
        for _ in range(20 * NOTICE_WINDOWS):
            watch.observe(machine.window(BUSY, others=1.0))
            said.append(watch.notice())
    finally:
        watch.stop()
    lines = [line for line in said if line is not None]
    assert len(lines) == 1
    assert said.index(lines[0]) >= NOTICE_WINDOWS - 1
    assert "1.0 of 2 processors" in lines[0]
    assert "run.threads=1" in lines[0]


def run(code: str, **environment: str) -> str:
    """What a process of its own prints, in which OpenMP is as it comes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_libgomp_nothing_is_done_and_the_line_names_the_setting_that_helps() -> None:
    said = run(f"""
from oncurve.machine.contention import *
start = ProcessorReading(0.0, {{"1": 0.0}}, 0.0, 0.0)
watch = ContentionWatch(2, 2, lambda: start)
for i in range(1, {NOTICE_WINDOWS + 5}):
    watch.observe(ProcessorReading(0.25 * i, {{"1": 0.25 * i}}, 0.5 * i, 0.25 * i))
print(ShortWaits(2).begin(), watch.short, watch.notice())
""")
    assert said.startswith("False False ")
    assert [words for words in table("processors", "told") if words not in said] == []


WAITS = """
import json, os, resource
import torch
from oncurve.machine.contention import ShortWaits

torch.set_num_threads(2)
x, y = torch.randn(64, 4096), torch.randn(2, 32768)

def sleeps(loops=20, times=20):
    found = []  # other programs can only make a thread that spins give up: the least of short measurements is its own
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        for _ in range(loops):
            y.mul_(1.0)
        found.append((resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / loops)
    return sorted(found)

def bits():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4096, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
    loss = torch.nn.functional.cross_entropy(layer(x), torch.arange(64))
    loss.backward()
    return [loss.item().hex(), *(p.grad.double().sum().item().hex() for p in layer.parameters())]

def threads():
    return len(os.listdir("/proc/self/task"))

sleeps()
found = {"spinning": [sleeps()], "bits": [bits()], "threads": [threads()], "short": []}
waits = ShortWaits(max(2, len(os.sched_getaffinity(0))))
for _ in range(2):
    assert waits.begin() and waits.begin()
    found["short"].append(sleeps())
    found["bits"].append(bits())
    waits.end()
    waits.end()
    found["spinning"].append(sleeps())
    found["bits"].append(bits())
    found["threads"].append(threads())
waits.begin()  # and the process ends with waits short
print(json.dumps(found))
"""


@linux
@two_processors
@pytest.mark.slow
def test_waits_are_short_between_begin_and_end_and_no_bit_changes() -> None:
    found = json.loads(run(WAITS))
    short = min(statistics.median(each) for each in found["short"])
    assert short > 0.25  # threads sleep in most loops
    assert min(each[0] for each in found["spinning"]) < 0.5 * short
    assert len({tuple(bits) for bits in found["bits"]}) == 1
    assert len(set(found["threads"])) == 1  # the idle team is gone
