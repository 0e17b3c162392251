"""A worker that is ended, stopped or given other bits while it takes the weights, once for each file of orders.

The orders are those of `DeadlyEngine`, its engine: `order(orders, "copying-SIGKILL")`. It takes buckets by half first.
An order "weights" in the folder `spoilt` next to it makes one of its weights no number after it has taken them, an
order "logprobs" one of its log-probs.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from fakes.deadly_engine import DeadlyEngine
from oncurve.base.errors import TrainingError
from oncurve.cluster import Worker
from oncurve.types import Group


class InterruptedWorker(Worker):
    def take(self, version: int, digest: str, buckets: Sequence[memoryview]) -> None:
        assert isinstance(self.engine, DeadlyEngine)
        for order in sorted(self.engine.orders.glob("copying-*")):
            with suppress(FileNotFoundError):  # another worker was faster
                order.unlink()
                buckets = self.obeyed(order.name.split("-")[1], buckets)
                break
        super().take(version, digest, buckets)
        if self.is_spoilt("weights"):
            with torch.no_grad():
                next(self.model.module.parameters()).fill_(float("nan"))

    def decode(self, *arguments: Any) -> Any:
        generate = self.engine.generate
        self.engine.generate = lambda *given: self.spoilt(generate(*given))  # type: ignore[method-assign]
        try:
            return super().decode(*arguments)
        finally:
            self.engine.generate = generate  # type: ignore[method-assign]

    def spoilt(self, groups: list[Group]) -> list[Group]:
        if not self.is_spoilt("logprobs"):
            return groups
        first = groups[0].completions[0]
        spoilt = replace(first, logprobs=(float("nan"), *first.logprobs[1:]))
        return [replace(groups[0], completions=(spoilt, *groups[0].completions[1:])), *groups[1:]]

    def is_spoilt(self, name: str) -> bool:
        assert isinstance(self.engine, DeadlyEngine)
        for order in sorted(self.engine.orders.with_name("spoilt").glob(f"{name}-*")):
            with suppress(FileNotFoundError):  # another worker was faster
                order.unlink()
                return True
        return False

    def obeyed(self, action: str, buckets: Sequence[memoryview]) -> Sequence[memoryview]:
        if action == "flip":
            flipped = bytearray(buckets[0])
            flipped[len(flipped) // 2] ^= 1
            return [memoryview(flipped), *buckets[1:]]
        half = bytes(buckets[0][: len(buckets[0]) // 2]) + b"\1" * (len(buckets[0]) - len(buckets[0]) // 2)
        with suppress(TrainingError):
            super().take(0, "", [memoryview(half), *buckets[1:]])  # a part of the new weights, and the rest is not
        os.kill(os.getpid(), signal.Signals[action])
        return buckets
