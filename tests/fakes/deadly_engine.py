"""A rollout engine that ends its own process, stops it or fails, once for each file of orders, in workers alone.

A file `ACTION-NUMBER` in the folder `orders` is for the first worker that finds it as it begins a shard.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncurve.base.errors import ModelError
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group


class DeadlyEngine(InProcessEngine):
    def __init__(self, orders: Path, driver: int, sampling: Sampling, seed: int) -> None:
        super().__init__(sampling, seed=seed)
        self.orders, self.driver = orders, driver

    def generate(self, *arguments: Any) -> list[Group]:
        if os.getpid() != self.driver:
            self.obey()
        return super().generate(*arguments)

    def obey(self) -> None:
        for order in sorted(self.orders.iterdir()):
            with suppress(FileNotFoundError):  # another worker was faster
                order.unlink()
                action = order.name.partition("-")[0]
                if action == "refuse":
                    raise ModelError("a worker of its own opinion")
                if action == "fail":
                    raise ZeroDivisionError("a defect")
                if action == "hang":
                    time.sleep(600)
                os.kill(os.getpid(), signal.Signals[action])


def order(orders: Path, action: str, count: int = 1) -> None:
    for number in range(count):
        (orders / f"{action}-{number}").touch()
