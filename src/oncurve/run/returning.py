"""A run whose learner has lost its state goes back to its last checkpoint, and on from there, in the same process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from oncurve.base.errors import LostStateError
from oncurve.base.output import urgent
from oncurve.durable import numbered
from oncurve.run.directory.folder import CONFIG

RETURNS = 3
"""How often a run goes back without a newer checkpoint than the last time. Then the loss ends it."""

Ended = TypeVar("Ended")


class Returns:
    """How often the run in `directory` has gone back to a checkpoint (`count`), and whether it may again.

        stopped_by = Returns(directory).over(begin, again)

    `again` continues the run as `oncurve resume` does, so it goes on to the same numbers.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.count = self._in_a_row = 0
        self._from = -1
        self._began: float | None = None

    def over(self, begin: Callable[[], Ended], again: Callable[[], Ended]) -> Ended:
        """Return what `begin()` returns; after each loss of state, what `again()` does.

        Raises what they raise, and LostStateError: nothing of the run is written, or it does not get further.
        """
        attempt = begin
        while True:
            try:
                return attempt()
            except LostStateError as error:
                if not self.allowed:
                    raise
                self._go_back(error.cause)
            gc.collect()  # what is lost has its memory in reference cycles, and is made a second time now
            attempt = again

    @property
    def allowed(self) -> bool:
        """Return whether the run goes back after another loss."""
        return (self._directory / CONFIG).is_file() and (self._newest > self._from or self._in_a_row < RETURNS)

    def share(self, minutes: float | None) -> float | None:
        """Return the part of `run.max_minutes` that is left; the time begins with the first call. None: there is no
        limit.
        """
        self._began = time.monotonic() if self._began is None else self._began
        return None if minutes is None else max(0.0, minutes - (time.monotonic() - self._began) / 60)

    @property
    def _newest(self) -> int:
        return max((step for step, _ in numbered(self._directory / "checkpoints")), default=0)

    def _go_back(self, cause: str) -> None:
        step = self._newest
        self._in_a_row = 1 if step > self._from else self._in_a_row + 1
        self._from, self.count = step, self.count + 1
        where = f"to its checkpoint of step {step}" if step else "to its beginning"
        urgent(f"oncurve: {cause}; the run goes back {where} and on from there")
