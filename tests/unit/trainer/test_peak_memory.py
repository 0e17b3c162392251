"""The peak of a process's memory: its own, whatever the process that started it held."""

import subprocess
import sys

import pytest

from oncurve.trainer.watching.observe import peak_memory_bytes

CHILD = "from oncurve.trainer.watching.observe import peak_memory_bytes; print(peak_memory_bytes())"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_the_peak_is_that_of_this_process_and_not_of_its_parent():
    held = b"x" * (1200 << 20)  # more than a process with torch and oncurve in it
    parent = peak_memory_bytes()
    child = int(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True).stdout)
    assert len(held) < parent
    assert (50 << 20) < child < len(held) // 2
