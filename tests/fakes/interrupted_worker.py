"""A worker that is ended, stopped or given other bits while it takes the weights, once for each file of orders.

The orders are those of `DeadlyEngine`, its engine: `order(orders, "copying-SIGKILL")`. Buckets are taken by half first;
of a broadcast, the first piece. "deaf": it takes no part in a broadcast. At "weights" in the
folder `spoilt` next to it one of its weights is no number after it has taken them, at "logprobs" one of its log-probs
is none.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fakes.deadly_engine import DeadlyEngine, released
from oncurve import parallel
from oncurve.cluster import Worker
from oncurve.cluster.workers.broadcast import Invitation
from oncurve.cluster.workers.worker import Brought
from oncurve.parallel import LostRankError
from oncurve.types import Group

SPREAD = parallel._spread


class InterruptedWorker(Worker):
    def take(self, version: int, digest: str, what: Brought) -> None:
        assert isinstance(self.engine, DeadlyEngine)
        parallel._spread = SPREAD
        for order in sorted(self.engine.orders.glob("copying-*")):
            with suppress(FileNotFoundError):  # another worker was faster
                order.unlink()
                assert not isinstance(what, Path)
                action = order.name.split("-")[1]
                if isinstance(what, Invitation):
                    interrupt_broadcast(action)
                else:
                    what = self.obeyed(action, what)
                break
        super().take(version, digest, what)
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
        with suppress(RuntimeError):
            super().take(0, "", [memoryview(half), *buckets[1:]])  # a part of the new weights, and the rest is not
        os.kill(os.getpid(), signal.Signals[action])
        return buckets


class ReleasingWorker(Worker):
    """With the weights of version 1 it lets the workers go on that are held."""

    def take(self, version: int, digest: str, what: Brought) -> None:
        super().take(version, digest, what)
        assert isinstance(self.engine, DeadlyEngine)
        if version == 1:
            released(self.engine.orders).touch()


def interrupt_broadcast(action: str) -> None:
    """In this process the next bucket that comes is not put where it belongs."""
    if action == "deaf":
        raise LostRankError("this worker takes no part")

    def spread(joined: Any, bucket: Any, put: Any) -> None:
        if action == "flip":
            SPREAD(joined, bucket, put)
            bucket[0].view(-1)[:1].neg_()
        else:
            SPREAD(joined[: bucket[0].numel()], bucket[:1], put)
            os.kill(os.getpid(), signal.Signals[action])

    parallel._spread = spread
