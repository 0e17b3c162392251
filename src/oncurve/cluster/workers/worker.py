"""A process that samples: an engine of its own, over a copy of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import torch

from oncurve.base.errors import TrainingError, UserError
from oncurve.cluster.workers.weights import digest_of, take
from oncurve.machine.threads import begin_process
from oncurve.models import CausalModel, LocalWeights
from oncurve.processes.fleets import CPU
from oncurve.rollout import RolloutEngine, Sampling
from oncurve.types import Group, Prompt


class Worker:
    """The object that `FleetEngine` calls in each process. It decodes by a whole version of the weights or not at all.

    A worker that raises is ended, and another takes its place.

    model    a copy of the policy; `take` replaces its weights
    build    makes the engine
    threads  of this process
    device   where it computes
    """

    def __init__(
        self, model: CausalModel, build: Callable[[], RolloutEngine], threads: int, device: torch.device = CPU
    ) -> None:
        self.model, self.engine, self._threads, self._device = model, build(), threads, device

    def begin(self) -> None:
        """Called once in the worker's own process."""
        begin_process(self._threads)
        self.model.module.to(self._device)

    def take(self, version: int, digest: str, pieces: Sequence[memoryview]) -> None:
        """Sample from these weights from now on. Raises TrainingError: they are not the version's, bit for bit."""
        take(self.model, pieces)
        found = digest_of(self.model)
        if found != digest:
            raise TrainingError(f"the weights of version {version} have digest {found}, and should have {digest}")
        self.engine.follow(LocalWeights(self.model, version))

    def decode(
        self, digest: str, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None, firsts: Sequence[int]
    ) -> list[Group] | UserError:
        """Return the groups of a shard, by the weights that were taken last, which had this `digest`. An error of the
        right weights is returned: it is for the driver, which meets it too.

        Raises TrainingError: log-probs are not finite, or the weights are no longer those that came.
        """
        try:
            groups = self.engine.generate(prompts, draw, sampling, None, firsts)
        except UserError as error:
            if digest_of(self.model) != digest:
                raise TrainingError(f"its weights were damaged after it had taken them: {error}") from error
            return type(error)(str(error))
        if not all(map(isfinite, (value for group in groups for row in group.completions for value in row.logprobs))):
            raise TrainingError("it answered log-probs that are not finite numbers")
        return groups
