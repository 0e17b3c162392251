"""`[cluster]`: the processes that a run uses in addition to its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from oncurve.cluster.facts import ClusterFacts
from oncurve.cluster.making import Part, ProcessCluster
from oncurve.cluster.ray_cluster import RayCluster
from oncurve.components import Component, check_of
from oncurve.learner import Learner
from oncurve.models import CausalModel
from oncurve.processes.fleets import Fleet, Gpus, HostFleet
from oncurve.rollout import RolloutEngine, Sampling, Tokenizer


class Cluster(Protocol):
    """The component of `[cluster]`."""

    @property
    def facts(self) -> ClusterFacts:
        """Facts that other parts need."""
        ...

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """Return the run's learner, from `make(tokenizer=...)`, which builds the local one."""
        ...

    def rollout_engine(
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        needed: Callable[[], float] = ...,
    ) -> RolloutEngine:
        """Return the run's rollout engine, from this process's own and `build()`, which builds the same in another.

        `needed()` is how many bytes training takes of a GPU that an engine of another kind shares with it. The rest is
        for such an engine, as in `EngineConfig.build`.
        """
        ...

    def check(self, device: torch.device) -> None:
        """Raise ConfigError where this machine lacks what the run needs, whose model will be on `device`.

        Called before anything is loaded.
        """

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """Raise ConfigError where not all processes that write checkpoints of `learner` see `folder`, the run's.

        Called before training begins.
        """

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """End all other processes: no step follows. This one samples and exports by itself. Twice is allowed."""


class NoCluster(Component):
    """One process (`kind = "none"`): no socket is opened."""

    facts: ClassVar[ClusterFacts] = ClusterFacts()

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """Return the learner that `make()` builds."""
        return make()

    def rollout_engine(self, local: RolloutEngine, *ignored: Any, **others: Any) -> RolloutEngine:
        """Return the process's own engine."""
        return local

    def check(self, device: torch.device) -> None:
        """Need nothing."""

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """Write checkpoints alone."""

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """End nothing: there is no other process."""


class HostCluster(ProcessCluster):
    """Processes of this machine (`kind = "host"`), forked from one that has loaded everything. This is the kind of a
    section with other keys and without a `kind`."""

    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """Return `places` forked processes of this machine."""
        cards = () if gpus is None else getattr(self.placement(gpus), part)
        return HostFleet(make, places, self.silence_seconds, cards)


CLUSTER_KINDS: dict[str, type[Component]] = {"none": NoCluster, "host": HostCluster, "ray": RayCluster}


def cluster_meant(table: Mapping[str, Any]) -> str | None:
    """Return the kind of a `[cluster]` with keys and without a `kind`: that whose `address` is given, or this
    machine.
    """
    return "ray" if "address" in table else "host" if table else None


check_cluster = check_of("cluster", ("facts", "learner", "rollout_engine", "check", "check_folder", "rest"))
