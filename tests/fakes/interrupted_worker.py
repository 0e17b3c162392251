"""A worker that is ended, stopped or given other bits while it copies the weights, once for each file of orders.

The orders are those of `DeadlyEngine`, its engine: `order(orders, "copying-SIGKILL")`.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fakes.deadly_engine import DeadlyEngine
from oncurve.cluster import Worker


class InterruptedWorker(Worker):
    def take(self, version: int, digest: str, what: Sequence[memoryview] | Path) -> None:
        assert isinstance(self.engine, DeadlyEngine)
        for order in sorted(self.engine.orders.glob("copying-*")):
            with suppress(FileNotFoundError):  # another worker was faster
                order.unlink()
                assert not isinstance(what, Path)
                what = self.obeyed(order.name.split("-")[1], what)
        super().take(version, digest, what)

    def obeyed(self, action: str, buckets: Sequence[memoryview]) -> Sequence[memoryview]:
        if action == "flip":
            flipped = bytearray(buckets[0])
            flipped[len(flipped) // 2] ^= 1
            return [memoryview(flipped), *buckets[1:]]
        half = bytes(buckets[0][: len(buckets[0]) // 2]) + b"\1" * (len(buckets[0]) - len(buckets[0]) // 2)
        with suppress(RuntimeError):
            super().take(0, "", [memoryview(half), *buckets[1:]])  # a part of the new weights, and the rest is not
        os.kill(os.getpid(), signal.Signals[action])
        return buckets
