"""Wait for what another process or thread does."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until the condition holds, and fail where it does not within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
