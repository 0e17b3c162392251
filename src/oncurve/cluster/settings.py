"""`[cluster]`: the processes that a run uses in addition to its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oncurve.cluster.keys import Cluster
from oncurve.cluster.making import Part, ProcessCluster
from oncurve.cluster.ray_cluster import RayCluster
from oncurve.components import Component, check_of
from oncurve.processes.fleets import Fleet, Gpus, HostFleet


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
