"""The GPU of the run's own process on its machine of a Ray cluster.

Ray knows nothing of a process that it has not started, and would give its GPU to another. So an actor that does nothing
takes that GPU as long as the run uses the cluster.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.processes.fleets.devices import VISIBLE

TAKE_SECONDS = 60.0
"""In which a GPU that is free is found among those of this machine."""


def take_gpu(ray: Any, entry: str, seconds: float = TAKE_SECONDS) -> Any:
    """The actor that has the GPU which CUDA_VISIBLE_DEVICES of this process calls `entry`; `ray.kill` frees it.

    Ray chooses which GPU an actor gets, so they are taken one by one, and those that are not wanted are given back.

    Raises ConfigError: Ray has no free GPU of this name here.
    """
    strategies = ray.util.scheduling_strategies
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holder = ray.remote(num_cpus=0, num_gpus=1, max_restarts=0, scheduling_strategy=here)(_holder_class())
    others, found, until = [], None, time.monotonic() + seconds
    try:
        while found is None:
            taken = holder.remote(VISIBLE)
            others.append(taken)
            if ray.get(taken.card.remote(), timeout=max(0.1, until - time.monotonic())) == entry:
                found = others.pop()
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"cluster.address: this process computes on GPU {entry}, which Ray cannot keep for it within {seconds:g} "
            f"seconds: it is in use, or Ray was started without it; set {VISIBLE} to a GPU of this machine that Ray "
            "has free"
        ) from error
    finally:
        for other in others:
            with contextlib.suppress(Exception):  # it has ended
                ray.kill(other, no_restart=True)
    return found


def _holder_class() -> type:
    """Defined here so that Ray sends it by value: its process imports nothing of oncurve."""

    class Holder:
        """Has a GPU and leaves it alone."""

        def __init__(self, variable: str) -> None:
            self.variable = variable

        def card(self) -> str:
            import os

            return os.environ.get(self.variable, "")

    return Holder
