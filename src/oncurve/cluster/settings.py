"""`[cluster]`: the processes that a run uses in addition to its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, cast

from pydantic import Field, field_validator

from oncurve.capabilities import Impossible, check_of
from oncurve.cluster.host_fleet import HostFleet
from oncurve.cluster.learner import FleetLearner
from oncurve.cluster.rank import Rank
from oncurve.learner import Learner, LocalLearner
from oncurve.spec import Component


class Cluster(Protocol):
    """The component of `[cluster]`. `alone`: one process does everything, as if the section were not there."""

    @property
    def alone(self) -> bool:
        """Whether one process does everything."""
        ...

    @property
    def processes(self) -> int:
        """Processes that each hold a policy with its optimizer."""
        ...

    def learner(self, make: Callable[..., Learner]) -> Learner:
        """The run's learner, from `make(tokenizer=...)`, which builds the local one."""
        ...

    def sentences(self) -> list[str]:
        """What the plan says of it."""
        ...


class NoCluster(Component):
    """One process (`kind = "none"`): no socket is opened."""

    alone: ClassVar[bool] = True
    processes: ClassVar[int] = 1

    def learner(self, make: Callable[..., Learner]) -> Learner:
        """The learner that `make()` builds."""
        return make()

    def sentences(self) -> list[str]:
        """Nothing: all is as the other sentences say."""
        return []


class HostCluster(Component):
    """Processes of this machine (`kind = "host"`), forked from one that has loaded everything."""

    alone: ClassVar[bool] = False

    learner_ranks: int = Field(default=1, ge=1, le=1024)
    """Processes that compute the gradient, this one included. Their number does not change any result."""

    gradient_shards: int = Field(default=8, ge=1, le=1024)
    """Shards of an update, a power of two and not less than `learner_ranks`: the gradient of each is computed by
    itself, and they are added in a fixed tree. Part of the result, like a seed."""

    sharding: Literal["replicate"] = "replicate"
    """"replicate": every rank has the whole model with its optimizer."""

    rank_threads: int = Field(default=1, ge=1, le=1024)
    """Processor threads of each rank while it computes updates; sampling has `run.threads`. Part of the result."""

    silence_seconds: float = Field(default=20.0, ge=3, le=1e6)
    """A process that has said nothing for so long, because it hangs or was stopped, is killed and replaced. Processes
    say every second that they live, whatever they compute."""

    wait_seconds: float = Field(default=1800.0, ge=1, le=1e6)
    """The longest wait for the work of another rank. Then the update is made with other ranks."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda cluster: bool(cluster.gradient_shards & (cluster.gradient_shards - 1)),
            "cluster.gradient_shards: shards are added in a tree of pairs, so there must be 1, 2, 4, 8, ... of them",
        ),
        Impossible(
            lambda cluster: cluster.learner_ranks > cluster.gradient_shards,
            "cluster.learner_ranks: a rank without a shard would have nothing to do; lower it, or raise "
            "cluster.gradient_shards, which is part of the result",
        ),
    )

    @field_validator("sharding", mode="before")
    @classmethod
    def _built(cls, value: Any) -> Any:
        if value == "fsdp":
            raise ValueError(
                'sharding over ranks is not built yet: set it to "replicate"; for less memory per rank set '
                'learner.masters="split", learner.moments="bfloat16" or lora.rank'
            )
        return value

    @property
    def processes(self) -> int:
        """The ranks."""
        return self.learner_ranks

    def learner(self, make: Callable[..., Learner]) -> Learner:
        """The learner that `make()` builds, as rank 0 of `learner_ranks`. Each rank makes its own before it is forked.

        `make` takes a keyword `tokenizer`, which only rank 0 needs.
        """
        fleet = None
        if self.learner_ranks > 1:
            make_rank = partial(_rank, partial(make, tokenizer=None), self.rank_threads, self.wait_seconds)
            fleet = HostFleet(make_rank, self.learner_ranks - 1, self.silence_seconds)
        try:
            local = cast("LocalLearner", make())
            return FleetLearner(local, fleet, self.gradient_shards, self.rank_threads, self.wait_seconds)
        except BaseException:
            if fleet is not None:
                fleet.close()
            raise

    def sentences(self) -> list[str]:
        """How an update is shared."""
        shards = f"{self.gradient_shards} gradient shard{'s' * (self.gradient_shards > 1)} added in a fixed tree"
        ranks = f"{self.learner_ranks} process{'es' * (self.learner_ranks > 1)}"
        threads = f"{self.rank_threads} thread{'s' * (self.rank_threads > 1)}"
        return [
            f"An update is made by {ranks} of this machine with {threads} each, in {shards}: their number, and losses "
            "of them, change no bit."
        ]


def _rank(make: Callable[[], Learner], threads: int, wait_seconds: float) -> Rank:
    return Rank(cast("LocalLearner", make()), threads, wait_seconds)


CLUSTER_KINDS: dict[str, type[Component]] = {"none": NoCluster, "host": HostCluster}

check_cluster = check_of("cluster", ("learner", "alone", "processes", "sentences"), ("alone",))
