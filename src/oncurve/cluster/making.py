"""The processes of a cluster, made by its settings: ranks of a learner, workers of a rollout."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from oncurve.base.errors import ConfigError
from oncurve.cluster.facts import ClusterFacts, sentences_of
from oncurve.cluster.keys import ProcessSettings
from oncurve.cluster.ranks import FleetLearner, Rank
from oncurve.cluster.vllm import ServerFaultError, VllmServer, VllmSettings, VllmWorker, vllm_engine, vllm_program
from oncurve.cluster.workers import BUCKET_SECONDS, Broadcast, Carrier, DiskCarrier, FleetEngine, ObjectCarrier, Worker
from oncurve.learner import Learner, LocalLearner
from oncurve.models import CausalModel, module_device
from oncurve.processes.fleets import CPU, Fleet, Gpus, Placement, check_settings, gpus_of, memory_share, placed
from oncurve.rollout import RolloutEngine, Sampling, Tokenizer

if TYPE_CHECKING:
    from oncurve.cluster.sharding import ShardedLearner

Needed = Callable[[], float]
"""The bytes that training takes of a GPU."""

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
        each = 0 if self.vllm_addresses else self.rollout_gpus  # servers that run already have theirs
        return placed(gpus, self.learner_ranks, self.rollout_workers, each)

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
        """Raises ConfigError: `weights_folder` cannot be written to, NCCL is asked for without GPUs, the workers are
        to start vLLM servers, and vllm is not on PATH, or a server that they are to use does not answer, or lacks what
        a run needs."""
        if self.weights_folder:
            DiskCarrier.check(Path(self.weights_folder))
        if (gpus := gpus_of(device)) is not None:
            check_settings(self.served, self.weights == "nccl", self.rollout_gpus)
            self.placement(gpus)
        if self.weights == "nccl" and device.type != "cuda":
            raise ConfigError(
                f'cluster.weights: "nccl" sends from GPU to GPU, and the model is on {device.type}; set it to "gloo", '
                'which sends between processors, or to "object"'
            )
        if self.engine == "vllm" and not self.vllm_addresses and self.on_this_machine:
            vllm_program()
        for address in self.vllm_addresses:
            try:
                VllmServer(address, os.environ.get("VLLM_API_KEY", "")).check_routes()
            except ServerFaultError as fault:
                raise ConfigError(
                    f"cluster.vllm_addresses: {fault}; start it as docs/cluster.md says, or leave it out"
                ) from fault

    def rollout_engine(
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        needed: Needed = lambda: math.inf,
    ) -> RolloutEngine:
        """Return an engine that decodes shards by `rollout_workers` processes, or in this one."""
        served = partial(vllm_engine, sampling, tokenizer, tuple(eos_ids), seed)

        def make_fleet(model: CausalModel) -> Fleet:
            """Return the workers' fleet, as soon as there is a model to copy."""
            if self.served:
                return self._servers(model, served, needed)
            gpus = seen_by(model)
            device = CPU if gpus is None else torch.device(gpus.device)
            make_worker = partial(Worker, model, build, self.worker_threads, device)
            return self.fleet(make_worker, self.rollout_workers, "workers", gpus)

        return FleetEngine(
            local,
            sampling,
            make_fleet if self.rollout_workers else None,
            self.shard_groups,
            self.worker_threads,
            self.wait_seconds,
            self._carrier(),
            self.wait_seconds if self.served else 0.0,
            exact=self.exact,
            workers=self.rollout_workers,
            fill=self.served,
        )

    def _carrier(self) -> Carrier:
        if self.weights == "gloo" or self.weights == "nccl":
            return Broadcast(self.weights, min(self.wait_seconds, BUCKET_SECONDS))
        return DiskCarrier(self.weights_folder) if self.weights == "disk" else ObjectCarrier()

    def _servers(self, model: CausalModel, make: Callable[[VllmSettings], RolloutEngine], needed: Needed) -> Fleet:
        """Return a fleet of workers that have a vLLM server each."""
        if model.adapter is not None and model.adapter.quantized:
            raise ConfigError(
                'cluster.engine: "vllm" gets whole weights, and a quantised base has none; set it to "own"'
            )
        folder = _shared_folder(self.weights_folder) if self.vllm_addresses else None
        gpus, arguments = None if self.vllm_addresses else seen_by(model), self.vllm_arguments
        if gpus is not None and not self.rollout_gpus:  # on the learner's card
            share = memory_share(*torch.cuda.mem_get_info(module_device(model.module)), needed(), self.rollout_workers)
            arguments = ("--gpu-memory-utilization", f"{share:.2f}", *arguments)
        settings = VllmSettings(
            self.vllm_addresses,
            "" if folder is None else folder.name,
            arguments,
            self.wait_seconds,
            self.silence_seconds,
            max(1, self.rollout_gpus) if gpus is not None else 1,
            os.environ.get("VLLM_API_KEY", ""),
        )
        worker = partial(VllmWorker, model, partial(make, settings), self.worker_threads)
        fleet = self.fleet(worker, self.rollout_workers, "workers", gpus)
        if folder is not None:
            weakref.finalize(fleet, folder.cleanup)
        return fleet

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
            exact=self.exact,
            served=self.served,
            sentences=tuple(sentences_of(self)),
        )


def _shared_folder(parent: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder of the run's own in `parent`; "": among temporary files. Raises ConfigError: it cannot be
    made.
    """
    where = Path(parent or tempfile.gettempdir())
    try:
        where.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="oncurve-vllm-", dir=where.absolute())
    except OSError as error:
        raise ConfigError(f"cluster.weights_folder: no folder can be made in {where}: {error.strerror}") from error


def seen_by(model: CausalModel) -> Gpus | None:
    """Return `gpus_of` the device that a model is on."""
    return gpus_of(module_device(model.module))
