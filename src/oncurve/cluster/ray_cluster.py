"""The kind of `[cluster]` whose processes are on the machines of a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from pydantic import field_validator

from oncurve.base.errors import ConfigError
from oncurve.cluster.keys import check_port
from oncurve.cluster.making import Part, ProcessCluster
from oncurve.components import Impossible
from oncurve.processes.fleets import Fleet, Gpus, Placement, RayFleet, check_address, missing


class RayCluster(ProcessCluster):
    """Processes on the machines of a Ray cluster (`kind = "ray"`). This is the kind of a section with an `address` and
    without a `kind`."""

    where: ClassVar[str] = "a Ray cluster"

    address: str = ""
    """`host:port` of a running Ray, of which this machine must be a node. Empty: a Ray of this run on this machine,
    which ends with it."""

    mixed: bool = False
    """Workers may be on machines with another torch or other kernels. Then rollouts are not exact: the old log-probs
    are computed by the learner, and `[correction]` applies. Ranks there stay refused. Part of the result."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        *ProcessCluster.impossible,
        Impossible(lambda cluster: find_spec("ray") is None, missing()),
        Impossible(
            lambda cluster: bool(cluster.address) and cluster.learner_ranks == 1 and not cluster.rollout_workers,
            "cluster.address: the run has one process, and would use no Ray; raise cluster.rollout_workers or "
            "cluster.learner_ranks, or leave the address out",
        ),
        Impossible(
            lambda cluster: bool(cluster.address and cluster.vllm_addresses) and not cluster.weights_folder,
            "cluster.weights_folder: the workers of a Ray cluster write weights for the servers of "
            "cluster.vllm_addresses; name a folder that all their machines see",
        ),
        Impossible(
            lambda cluster: cluster.mixed and not cluster.rollout_workers,
            "cluster.mixed: it is for workers, and there are none; raise cluster.rollout_workers, or leave it out",
        ),
    )

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value and re.fullmatch(r"[^\s/]+:\d{1,5}", value) is None:
            raise ValueError("must be host:port of a running Ray, such as 10.0.0.1:6379, without ray:// before it")
        if value:
            check_port(value)
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

    @property
    def exact(self) -> bool:
        """Return whether the workers have oncurve's own engine, and the versions of this process."""
        return super().exact and not self.mixed

    def placement(self, gpus: Gpus) -> Placement:
        """Return no GPUs: Ray chooses. Raises ConfigError: workers would share the GPU of this process."""
        if self.rollout_workers and not self.rollout_gpus and not self.vllm_addresses:
            raise ConfigError(
                "cluster.rollout_gpus: workers that Ray has placed cannot share the GPU of rank 0, which may be on "
                'another machine; set it to 1, or cluster.kind to "host"'
            )
        return Placement((), ())

    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """`places` processes on the cluster's machines."""
        mixed, each = self.mixed and part == "workers", self.rollout_gpus if part == "workers" else 1
        threads = self.threads_per_process
        return RayFleet(make, places, self.silence_seconds, self.address, threads, mixed, gpus, each)
