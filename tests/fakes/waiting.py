"""Wait for what another process or thread does."""

import time
from collections.abc import Callable

import psutil
import pytest


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until the condition holds, and fail where it does not within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def errors_with(word: str, capture: "pytest.CaptureFixture[str]") -> str:
    """Return what is written to standard error until `word` is there."""
    said = [""]

    def there() -> bool:
        said[0] += capture.readouterr().err
        return word in said[0]

    until(there)
    return said[0]
