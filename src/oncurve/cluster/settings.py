"""`[cluster]`: the processes that a run uses in addition to its own."""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from pydantic import field_validator

from oncurve.base.errors import ConfigError
from oncurve.cluster.making import RULES, Cluster, Part, ProcessCluster
from oncurve.components import Component, Impossible, check_of
from oncurve.processes.fleets import MISSING, Fleet, Gpus, HostFleet, Placement, RayFleet, check_address


class RayCluster(ProcessCluster):
    """Processes on the machines of a Ray cluster (`kind = "ray"`). This is the kind of a section with an `address` and
    without a `kind`."""

    where: ClassVar[str] = "a Ray cluster"

    address: str = ""
    """`host:port` of a running Ray, of which this machine must be a node. Empty: a Ray of this run on this machine,
    which ends with it."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        *ProcessCluster.impossible,
        Impossible(lambda _: find_spec("ray") is None, MISSING),
        Impossible(lambda c: bool(c.address) and c.learner_ranks == 1 and not c.rollout_workers, RULES["ray_unused"]),
    )

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value and re.fullmatch(r"[^\s/]+:\d{1,5}", value) is None:
            raise ValueError("must be host:port of a running Ray, such as 10.0.0.1:6379, without ray:// before it")
        if value and not 0 < int(value.rpartition(":")[2]) < 1 << 16:
            raise ValueError(f"{value} has no port that there is; ports are 1 to 65535")
        return value

    def check(self, device: torch.device) -> None:
        """Raises ConfigError: as with every kind of processes, and where no Ray answers at the `address`."""
        super().check(device)
        if self.address:
            check_address(self.address)

    @property
    def on_this_machine(self) -> bool:
        """Return whether the Ray is one of this run, here."""
        return not self.address

    def placement(self, gpus: Gpus) -> Placement:
        """Return no GPUs: Ray chooses. Raises ConfigError: workers would share the GPU of this process."""
        if self.rollout_workers and not self.rollout_gpus:
            raise ConfigError(
                "cluster.rollout_gpus: workers that Ray has placed cannot share the GPU of rank 0, which may be on "
                'another machine; set it to 1, or cluster.kind to "host"'
            )
        return Placement((), ())

    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """Return `places` processes on the cluster's machines."""
        each = self.rollout_gpus if part == "workers" else 1
        threads = max(self.rank_threads, self.worker_threads)
        settings = {"address": self.address, "threads": threads, "gpus": gpus, "each": each}
        return RayFleet(make, places, self.silence_seconds, **settings)


class HostCluster(ProcessCluster):
    """Processes of this machine (`kind = "host"`), forked from one that has loaded everything. This is the kind of a
    section with other keys and without a `kind`."""

    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """Return `places` forked processes of this machine."""
        cards = () if gpus is None else getattr(self.placement(gpus), part)
        return HostFleet(make, places, self.silence_seconds, cards)


CLUSTER_KINDS: dict[str, type[Component]] = {"none": Cluster, "host": HostCluster, "ray": RayCluster}


def cluster_meant(table: Mapping[str, Any]) -> str | None:
    """Return the kind of a `[cluster]` with keys and without a `kind`: that whose `address` is given, or this
    machine.
    """
    return "ray" if "address" in table else "host" if table else None


check_cluster = check_of("cluster", ("facts", "learner", "rollout_engine", "check", "check_folder", "rest"))
