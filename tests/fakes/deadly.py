"""A learner that ends its own process, or stops it, at a chosen place of an update, once for each file of orders.

A file `PLACE-SIGNAL` in the folder `orders` is for one rank other than rank 0, the first that finds it: the rank
removes the file and sends itself the signal.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fakes.learning import make_learner
from oncurve.learner import Accumulated, LocalLearner, MasterAdamW, UpdateResult

PLACES = ("before", "shard", "in", "after")
"""Before any work, in the middle of its shards, in the middle of the optimizer's step, after the step."""


class Deadly(LocalLearner):
    orders: Path
    driver: int

    def obey(self, place: str) -> None:
        if os.getpid() == self.driver:
            return
        for order in sorted(self.orders.glob(f"{place}-*")):
            with suppress(FileNotFoundError):  # another rank was faster
                order.unlink()
                os.kill(os.getpid(), signal.Signals[order.name.partition("-")[2]])

    def gradient_of(self, rows: Any) -> Accumulated:
        self.obey("before")
        accumulated = super().gradient_of(rows)
        self.obey("shard")
        return accumulated

    def apply(self, accumulated: Accumulated) -> UpdateResult:
        result = super().apply(accumulated)
        self.obey("after")
        return result


class DeadlyAdamW(MasterAdamW):
    learner: Deadly

    def step(self, *arguments: Any) -> bool:
        stepped = super().step(*arguments)
        self.learner.obey("in")
        return stepped


def make_deadly(orders: Path, driver: int, dtype: torch.dtype = torch.float32, **settings: Any) -> Deadly:
    """`make_learner`, deadly to every process but `driver`; computing in `dtype`."""
    settings.pop("tokenizer", None)
    given = torch.float64 if dtype == torch.float64 else torch.float32
    learner = make_learner(dtype=given, compute_dtype=dtype, **settings)
    learner.__class__ = Deadly
    learner.optimizer.__class__ = DeadlyAdamW
    learner.optimizer.learner = learner
    learner.orders, learner.driver = orders, driver
    return learner


def waiting(orders: Path) -> list[str]:
    """The orders that no rank has obeyed yet."""
    return sorted(order.name for order in orders.iterdir())


def order(orders: Path, place: str, number: str = "SIGKILL") -> None:
    (orders / f"{place}-{number}").touch()
