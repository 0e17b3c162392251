"""`[cluster]`: the processes that a run uses in addition to its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from oncurve.cluster.making import Part, ProcessCluster
from oncurve.cluster.ray_cluster import RayCluster
from oncurve.components import Component, check_of
from oncurve.learner import Learner
from oncurve.models import CausalModel
from oncurve.processes.fleets import Fleet, Gpus, HostFleet
from oncurve.rollout import RolloutEngine, Sampling, Tokenizer


class Cluster(Protocol):
    """The component of `[cluster]`. `alone`: one process does everything, as if the section were not there."""

    @property
    def alone(self) -> bool:
        """Whether one process does everything."""
        ...

    @property
    def on_this_machine(self) -> bool:
        """Whether all processes are on this machine, whose memory they need."""
        ...

    @property
    def processes(self) -> int:
        """Processes that each hold a policy with its optimizer."""
        ...

    @property
    def divided(self) -> bool:
        """Whether those processes divide the policy and its optimizer among them."""
        ...

    @property
    def offload(self) -> bool:
        """Whether what they divide is in the memory of their hosts."""
        ...

    @property
    def workers(self) -> int:
        """Processes that each hold a policy to sample from, in addition."""
        ...

    def idle_workers(self, groups: int) -> int:
        """How many of them have nothing to do in a rollout of so many groups."""
        ...

    @property
    def lag(self) -> int:
        """Step n trains what the weights after step n - 1 - lag wrote."""
        ...

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """The run's learner, from `make(tokenizer=...)`, which builds the local one."""
        ...

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """Raises ConfigError: not all processes that write parts of a checkpoint of `learner` see `folder`, the run's.
        Called before training begins."""

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """No step follows: end all other processes. This one goes on to sample and to export by itself. Twice is
        allowed."""

    @property
    def exact(self) -> bool:
        """Whether other processes sample as this one does; see `RolloutEngine.exact`."""
        ...

    @property
    def served(self) -> bool:
        """Whether servers sample that take and give token ids alone."""
        ...

    def check_machine(self, device: torch.device) -> None:
        """Raises ConfigError: this machine lacks what the run needs, whose model will be on `device`. Called before
        anything is loaded."""

    def rollout_engine(
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> RolloutEngine:
        """The run's rollout engine, from this process's own and `build()`, which builds the same in another; the rest
        is for an engine of another kind, as in `EngineConfig.build`."""
        ...

    def sentences(self) -> list[str]:
        """What the plan says of it."""
        ...


class NoCluster(Component):
    """One process (`kind = "none"`): no socket is opened."""

    alone: ClassVar[bool] = True
    on_this_machine: ClassVar[bool] = True
    divided: ClassVar[bool] = False
    offload: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    served: ClassVar[bool] = False
    processes: ClassVar[int] = 1
    workers: ClassVar[int] = 0
    lag: ClassVar[int] = 0

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """The learner that `make()` builds."""
        return make()

    def idle_workers(self, groups: int) -> int:
        """None."""
        return 0

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """This process writes checkpoints alone."""

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """There is no other process."""

    def check_machine(self, device: torch.device) -> None:
        """Nothing is needed."""

    def rollout_engine(
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> RolloutEngine:
        """The process's own."""
        return local

    def sentences(self) -> list[str]:
        """Nothing: all is as the other sentences say."""
        return []


class HostCluster(ProcessCluster):
    """Processes of this machine (`kind = "host"`), forked from one that has loaded everything. This is the kind of a
    section with other keys and without a `kind`."""

    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """`places` forked processes of this machine."""
        cards = () if gpus is None else getattr(self.placement(gpus), part)
        return HostFleet(make, places, self.silence_seconds, cards)


CLUSTER_KINDS: dict[str, type[Component]] = {"none": NoCluster, "host": HostCluster, "ray": RayCluster}


def cluster_meant(table: Mapping[str, Any]) -> str | None:
    """The kind of a `[cluster]` with keys and without a `kind`: that whose `address` is given, or this machine."""
    return "ray" if "address" in table else "host" if table else None


check_cluster = check_of(
    "cluster",
    (
        "learner",
        "rollout_engine",
        "check_folder",
        "rest",
        "check_machine",
        "exact",
        "served",
        "alone",
        "on_this_machine",
        "divided",
        "offload",
        "processes",
        "workers",
        "idle_workers",
        "lag",
        "sentences",
    ),
    ("alone",),
)
