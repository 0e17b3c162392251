"""A version of the weights on its way to workers."""

from __future__ import annotations

import threading
from typing import Any

from oncurve.cluster.workers.weights import Carrier, Snapshot
from oncurve.processes.fleets import Fleet

_TURN_SECONDS = 1.0


class Sending:
    """The weights of a snapshot, and the handle of their copy as soon as there is one.

    `begin` copies them in a thread of its own, for which the snapshot must stay as it is; `finish` in this one, or
    waits for that thread. `key` tells the version from all others once there is a copy.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.handle: Any = None
        self.key = ""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether workers can be given the handle."""
        return self.handle is not None

    def begin(self, carrier: Carrier, fleet: Fleet) -> None:
        """Copy the weights while this thread goes on."""
        self._thread = threading.Thread(target=self._copy, args=(carrier, fleet), name="oncurve-weights", daemon=True)
        self._thread.start()

    def finish(self, carrier: Carrier, fleet: Fleet) -> None:
        """Copy the weights, unless that is done. Raises OSError or StorageError: there is no room for them."""
        self.settle()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.handle is None:
            self._put(carrier, fleet)

    def settle(self) -> None:
        """Wait for the thread, if there is one. Twice is allowed."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_TURN_SECONDS)  # it ends as every copy does
        self._thread = None

    def _put(self, carrier: Carrier, fleet: Fleet) -> None:
        self.key = f"{self.snapshot.version} {self.snapshot.digest}"
        self.handle = carrier.put(fleet, self.snapshot)

    def _copy(self, carrier: Carrier, fleet: Fleet) -> None:
        try:
            self._put(carrier, fleet)
        except Exception as error:
            self._error = error
