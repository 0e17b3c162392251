"""The benchmark of a busy neighbour: what it leaves out, what it writes, and that its neighbour ends with it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.single.neighbour import CONDITIONS, SYSTEMS, case_of, cpu_seconds, neighbour, table, undisturbed


def steps(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"seconds": seconds, "others": others} for seconds, others in pairs]


def test_disturbed_steps_are_left_out_and_where_all_are_it_says_so() -> None:
    assert undisturbed(steps((1.0, 0.0), (9.0, 0.7), (3.0, 0.1))) == (2.0, True)
    assert undisturbed(steps((9.0, 0.7), (5.0, 0.4))) == (5.0, False)


def test_the_table_has_a_row_a_system_and_ratios_to_the_quiet_step() -> None:
    found = {name: steps((2.0 + index, 0.3 * index)) for index, name in enumerate(CONDITIONS)}
    lines = table({"oncurve": found}).splitlines()
    assert lines[-1] == "| oncurve | 2.00 s | 3.00 s (1.50)* | 4.00 s (2.00)* |"


@pytest.mark.parametrize("key", SYSTEMS)
def test_every_system_has_the_same_work(key: str) -> None:
    case, first = case_of(key, "6.5M"), case_of("oncurve", "6.5M")
    assert (case.prompts, case.group_size, case.completion) == (first.prompts, first.group_size, first.completion)
    assert case.threads == (1 if key == "oncurve-1" else 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_neighbour_keeps_a_processor_busy_while_it_is_wanted(condition: str) -> None:
    with neighbour(condition) as process:
        assert (process is None) is (condition == "quiet")
        used, until = cpu_seconds(process), time.monotonic() + 30
        while process is not None and cpu_seconds(process) <= used and time.monotonic() < until:
            time.sleep(0.05)
        assert process is None or cpu_seconds(process) > used
    assert process is None or not Path(f"/proc/{process}").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_neighbour_ends_when_its_parent_is_killed() -> None:
    code = f"""
import os, signal
from bench.single.neighbour import neighbour
with neighbour({CONDITIONS[2]!r}) as process:
    print(process, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    process, until = Path("/proc") / killed.stdout.strip(), time.monotonic() + 60
    while process.exists() and "zombie" not in (process / "status").read_text() and time.monotonic() < until:
        time.sleep(0.1)
    assert time.monotonic() < until
