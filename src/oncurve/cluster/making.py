"""The processes of a cluster, made by its settings: ranks of a learner, workers of a rollout."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from oncurve.base.errors import ConfigError
from oncurve.cluster.facts import ClusterFacts
from oncurve.cluster.keys import ProcessSettings
from oncurve.cluster.ranks import FleetLearner, Rank
from oncurve.cluster.vllm import VllmEngine, vllm_program
from oncurve.cluster.workers import FleetEngine, Worker
from oncurve.learner import Learner, LocalLearner
from oncurve.models import CausalModel, module_device
from oncurve.processes.fleets import CPU, Fleet, Gpus, Placement, gpus_of, memory_share, placed
from oncurve.rollout import RolloutEngine, Sampling, Tokenizer

if TYPE_CHECKING:
    from oncurve.cluster.sharding import ShardedLearner

Part = Literal["ranks", "workers"]
"""The purpose of a fleet's processes."""


class ProcessCluster(ProcessSettings):
    """Ranks and workers in a fleet. A kind of cluster says by `fleet` where its processes are."""

    @abstractmethod
    def fleet(self, make: Callable[[], Any], places: int, part: Part, gpus: Gpus | None = None) -> Fleet:
        """Return `places` processes for a `part`, each with the object that `make()` returns. `make` is pickled at
        once.

        gpus   those of this machine, of which each process gets its own; None: they compute on processors
        """

    def placement(self, gpus: Gpus) -> Placement:
        """Return which process has which of the `gpus`. Raises ConfigError: they are too few, or of several models."""
        return placed(gpus, self.learner_ranks, self.rollout_workers, self.rollout_gpus)

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """Return the learner that `make()` builds, as rank 0 of `learner_ranks`. Each rank's process makes its own.

        `make` takes a keyword `tokenizer`, which only rank 0 needs, and `make`, the class of what it builds. `models`
        are those that it is built of, the policy's first: a rank moves them to its own device before.
        """
        if self.divided:
            return self._sharded(make, models)
        fleet = None
        if self.learner_ranks > 1:
            gpus = seen_by(models[0]) if models else None
            moved = (models, torch.device(gpus.device)) if gpus is not None else ()
            make_local = cast("Callable[[], LocalLearner]", partial(make, tokenizer=None))
            make_rank = partial(Rank, make_local, self.rank_threads, self.wait_seconds, *moved)
            fleet = self.fleet(make_rank, self.learner_ranks - 1, "ranks", gpus)
        try:
            local = make()
            if not isinstance(local, LocalLearner):
                return local  # with a critic, which has no other ranks
            return FleetLearner(local, fleet, self.gradient_shards, self.rank_threads, self.wait_seconds)
        except BaseException:
            if fleet is not None:
                fleet.close()
            raise

    def _sharded(self, make: Callable[..., Learner], models: Sequence[CausalModel]) -> Learner:
        """Return the learner whose state is divided among the ranks, each of which cuts out its own part."""
        from oncurve.cluster.sharding import (
            Outline,
            ShardedLearner,
            ShardRank,  # here: without shards torch.distributed is not imported
            offloading,
        )

        make = partial(offloading, make) if self.offload else make
        gpus = seen_by(models[0]) if models else None
        device = CPU if gpus is None else torch.device(gpus.device)
        fleet = None
        if self.learner_ranks > 1:
            recipe = partial(ShardRank, Outline(make), self.rank_threads, self.wait_seconds, device)
            fleet = self.fleet(recipe, self.learner_ranks - 1, "ranks", gpus)
        return ShardedLearner(make, fleet, self.learner_ranks, self.rank_threads, self.wait_seconds, device)

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """Raises ConfigError: not all ranks that write parts of a checkpoint see `folder`."""
        if self.divided:
            cast("ShardedLearner", learner).check_folder(folder)

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """End ranks and workers: no step follows, and this process samples and exports by itself. Twice is allowed."""
        cast("FleetEngine", engine).rest()
        if self.divided or isinstance(learner, FleetLearner):  # and not one with a critic
            cast("FleetLearner | ShardedLearner", learner).rest()

    def check(self, device: torch.device) -> None:
        """Raises ConfigError: there are too few GPUs, or the workers are to start vLLM servers, and vllm is not on
        PATH."""
        if (gpus := gpus_of(device)) is not None:
            if self.rollout_gpus > 1 and not self.served:
                raise ConfigError(
                    "cluster.rollout_gpus: oncurve's own engine samples on one GPU per worker; set it to 1, or "
                    'cluster.engine to "vllm"'
                )
            self.placement(gpus)
        if self.served and self.on_this_machine:
            vllm_program()

    def rollout_engine(
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        needed: Callable[[], float] = lambda: math.inf,
    ) -> RolloutEngine:
        """Return an engine that decodes shards by `rollout_workers` processes, or in this one."""

        def make_fleet(model: CausalModel) -> Fleet:
            """Return the workers' fleet, as soon as there is a model to copy."""
            gpus = seen_by(model)
            device = CPU if gpus is None or self.served else torch.device(gpus.device)
            make = build
            if self.served:
                servers = self._servers(model, gpus, needed)
                make = partial(VllmEngine, sampling, tokenizer, tuple(eos_ids), seed, **servers)
            worker = partial(Worker, model, make, self.worker_threads, device)
            return self.fleet(worker, self.rollout_workers, "workers", gpus)

        return FleetEngine(
            local,
            sampling,
            make_fleet if self.rollout_workers else None,
            self.shard_groups,
            self.worker_threads,
            self.wait_seconds,
            workers=self.rollout_workers,
            served=self.served,
        )

    def _servers(self, model: CausalModel, gpus: Gpus | None, needed: Callable[[], float]) -> dict[str, Any]:
        """Return the settings of the workers' vLLM servers."""
        arguments = self.vllm_arguments
        if gpus is not None and not self.rollout_gpus:  # on the learner's card
            share = memory_share(*torch.cuda.mem_get_info(module_device(model.module)), needed(), self.rollout_workers)
            arguments = ("--gpu-memory-utilization", f"{share:.2f}", *arguments)
        count = max(1, self.rollout_gpus) if gpus is not None else 1
        return {"arguments": arguments, "seconds": self.wait_seconds, "gpus": count}

    @property
    def facts(self) -> ClusterFacts:
        """Facts that other parts need."""
        return ClusterFacts(
            alone=False,
            on_this_machine=self.on_this_machine,
            processes=self.learner_ranks,
            divided=self.divided,
            offload=self.offload,
            workers=self.rollout_workers,
            shard_groups=self.shard_groups,
            lag=self.lag,
            served=self.served,
        )


def seen_by(model: CausalModel) -> Gpus | None:
    """Return `gpus_of` the device that a model is on."""
    return gpus_of(module_device(model.module))
