"""Fixtures that every test may use, and how hypothesis looks for counterexamples."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# One thread per process, before torch is imported: tensors are small and several tests run at once, so that threads of
# one process would only wait for each other where cores are busy. Tests of threads set their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The key that signs runs is made at the first one, and the tests leave none in a home.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="oncurve-tests-")

import torch

import oncurve  # noqa: F401 - before any test's first product: see MKL_CBWR there
from fakes import shapes, started

# The shapes in the signatures of the pure rooms are checked at every call that a test makes, also from other rooms.
shapes.install()

# pytest keeps the modules of tests that it has rewritten, also where the environment has processes write no bytecode:
# rewriting is a quarter of the time of collecting them.
sys.dont_write_bytecode = False

# The same examples in every run: a failure that only some runs show is hard to trace. No deadline: machines are shared.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

# What is imported and collected, millions of objects, lives to the end: searching it for cycles takes a quarter of the
# time of collecting the tests, and a second each time while they run.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# A shell starts what runs in the background with SIGINT ignored, nohup with SIGHUP: runs and their children inherit it.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _threads_and_processes() -> Iterator[None]:
    """Whatever other tests have set, a test begins with the threads of the environment; its processes end with it."""
    torch.set_num_threads(THREADS)
    yield
    started.end_processes()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real files that are not part of the project: `ONCURVE_TEST_DATA`."""
    folder = os.environ.get("ONCURVE_TEST_DATA")
    if not folder:
        pytest.skip(
            "ONCURVE_TEST_DATA is not set: it names the folder of shared test data (models, data sets, vectors)"
        )
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"ONCURVE_TEST_DATA names {path}, which is not a folder")
    return path


@pytest.fixture
def shapes_unchecked() -> Iterator[None]:
    """As users run it: shapes in signatures are words, and a function says itself what does not fit."""
    shapes.disabled = True
    yield
    shapes.disabled = False
