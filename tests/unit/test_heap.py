"""Freed memory stays in the process, unless the environment has settings of its own."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from oncurve.machine.threads import keep_freed_memory
done = keep_freed_memory() if sys.argv[1] == "kept" else False
def fill():
    for _ in range(20):
        torch.ones(4 << 20)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    base = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", FAULTS, how], env=base | environment, capture_output=True, check=True)
    done, count = ran.stdout.split()
    return done == b"True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
@pytest.mark.slow
def test_pages_are_not_given_back_and_taken_again():
    (done, kept), (_, given_back) = faults("kept"), faults("as it is", MALLOC_MMAP_THRESHOLD_="1048576")
    assert not done or kept < given_back / 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_stand(name):
    assert faults("kept", **{name: "1048576" if name[0] == "M" else "glibc.malloc.check=0"})[0] is False
