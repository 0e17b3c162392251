"""A process that samples: an engine of its own, over a copy of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

import torch

from oncurve.base.errors import OncurveError
from oncurve.cluster.workers.broadcast import Invitation, Receiver
from oncurve.cluster.workers.queue import Lost
from oncurve.cluster.workers.weights import digest_of, take
from oncurve.machine.threads import keep_freed_memory, sum_exactly_on_gpus
from oncurve.models import CausalModel, LocalWeights
from oncurve.processes.fleets import CPU
from oncurve.rollout import RolloutEngine, Sampling
from oncurve.types import Group, Prompt

Brought = Sequence[memoryview] | Path | Invitation
"""The load of a carrier: buckets, the folder that has the weights, or a place in a broadcast."""


class Worker:
    """The object that `FleetEngine` calls in each process. It decodes by a whole version of the weights or not at all.

    model    a copy of the policy; `take` replaces its weights
    build    makes the engine
    threads  of this process
    device   where it computes
    """

    def __init__(
        self, model: CausalModel, build: Callable[[], RolloutEngine], threads: int, device: torch.device = CPU
    ) -> None:
        self.model, self.engine, self._threads, self._device = model, build(), threads, device
        self._digest: str | None = None
        self._receiver = Receiver()

    def begin(self) -> None:
        """Called once in the worker's own process."""
        keep_freed_memory()
        sum_exactly_on_gpus()
        torch.set_num_threads(self._threads)
        self.model.module.to(self._device)

    def take(self, version: int, digest: str, what: Brought) -> None:
        """Sample from the weights that a carrier brought. Then, where this raises, there is no version that could be
        sampled from. Raises RuntimeError: they are not the version's, bit for bit. LostRankError: not all have come."""
        self._digest = None
        if isinstance(what, Invitation):
            self._receiver.take(self.model, what)
        else:
            take(self.model, what)
        found = digest_of(self.model)
        if found != digest:
            raise RuntimeError(f"the weights of version {version} have digest {found}, and should have {digest}")
        self._digest = digest
        self.engine.follow(LocalWeights(self.model, version))

    def decode(
        self, digest: str, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None, firsts: Sequence[int]
    ) -> list[Group] | OncurveError | Lost:
        """Return the groups of a shard, or why they cannot be made. Raises RuntimeError: other weights are here.

        Lost: log-probs are not finite, or the weights are no longer those that came. An error of the right weights is
        for the driver, which meets it too.
        """
        if self._digest != digest:
            raise RuntimeError(f"a shard for the weights {digest} has come, and the weights here are {self._digest}")
        try:
            groups = self.engine.generate(prompts, draw, sampling, None, firsts)
        except OncurveError as error:
            if digest_of(self.model) != digest:
                return Lost(f"its weights were damaged after it had taken them: {error}")
            return type(error)(str(error))
        if not all(map(isfinite, (value for group in groups for row in group.completions for value in row.logprobs))):
            return Lost("it answered log-probs that are not finite numbers")
        return groups
