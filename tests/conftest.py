"""Fixtures that every test may use, and how hypothesis looks for counterexamples."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import oncurve  # noqa: F401 - before any test's first product: see MKL_CBWR there

# The same examples in every run: a failure that only some runs show is nobody's. No deadline: machines are shared.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
