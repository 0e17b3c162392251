"""Refusals of the disk: counted, told to the user, and no reason to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncurve.durable import DiskError

log = logging.getLogger("oncurve.trainer")


class Refusals:
    """The writes of a run that a full disk has refused.

    A step of which something was refused is told about if it is the first, second, fourth, eighth, ... in a row, and
    so is the first one after them of which nothing was.

    waiting    a checkpoint was refused, and none has been written since
    given_up   steps whose rollouts had to be dropped while the disk refused
    """

    def __init__(self) -> None:
        self.waiting = False
        self.given_up = 0
        self._last: DiskError | None = None
        self._untold = self._unmeasured = self._in_a_row = 0

    def note(self, error: DiskError) -> None:
        """Count a write that was refused."""
        self._last = error
        self._untold += 1
        self._unmeasured += 1

    def allow(self, write: Callable[[], object]) -> bool:
        """Return whether the disk took what `write` writes."""
        try:
            write()
        except DiskError as error:
            self.note(error)
            return False
        return True

    def checkpoint(self, save: Callable[[], object]) -> None:
        """Write a checkpoint; where the disk refuses it, it is `waiting` from now on."""
        self.waiting = not self.allow(save)

    def metrics(self) -> dict[str, float]:
        """Return the writes that were refused since the last call, by declared key; empty where there were none."""
        count, self._unmeasured = self._unmeasured, 0
        return {"disk/refused_writes": float(count)} if count else {}

    def tell(self, step: int) -> None:
        """Tell about what was refused since the last call, after `step` steps."""
        if self._untold and self._last is not None:
            self._untold = 0
            self._in_a_row += 1
            if self._in_a_row & (self._in_a_row - 1) == 0:
                log.warning(
                    "step %d: %s; %s. Training goes on, and what is missing is written once the disk takes it",
                    step,
                    self._last.reason,
                    self._last.advice,
                )
        elif self._in_a_row:
            self._in_a_row = 0
            lost = f"; the rollouts of {self.given_up} steps had to be given up" if self.given_up else ""
            log.warning("step %d: the disk takes what is written again%s", step, lost)
            self.given_up = 0
