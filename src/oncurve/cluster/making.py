"""The members of a cluster, and its processes, made by its settings: ranks of a learner, workers of a rollout."""

import tomllib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field

from oncurve.base.errors import ConfigError
from oncurve.cluster.facts import ClusterFacts
from oncurve.cluster.ranks import FleetLearner, Rank
from oncurve.cluster.vllm import VllmEngine, vllm_program
from oncurve.cluster.workers import FleetEngine, Worker
from oncurve.components import Component, Impossible, Inert
from oncurve.learner import Learner, LocalLearner
from oncurve.models import CausalModel, module_device
from oncurve.processes.fleets import CPU, Fleet, Gpus, Placement, gpus_of, memory_share, placed
from oncurve.rollout import RolloutEngine, Sampling

Part = Literal["ranks", "workers"]
"""The purpose of a fleet's processes."""

RULES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
"""The sentence of each rule of a cluster's own settings; of keys without effect, under `inert`, the keys as well."""


def _inert(name: str, holds: Callable[[Any], bool]) -> Inert:
    rule = RULES["inert"][name]
    return Inert(tuple(rule["keys"]), tuple(rule["causes"]), holds, rule["reason"])


class Cluster(Component):
    """One process (`kind = "none"`): no socket is opened. Other kinds say what their processes do instead."""

    @property
    def facts(self) -> ClusterFacts:
        """Facts that other parts need."""
        return ClusterFacts()

    def learner(self, make: Callable[..., Learner], models: Sequence[CausalModel] = ()) -> Learner:
        """Return the run's learner, from `make(tokenizer=...)`, which builds the local one."""
        return make()

    def rollout_engine(
        self, local: RolloutEngine, build: Callable[[], RolloutEngine], sampling: Sampling, *of_servers: Any
    ) -> RolloutEngine:
        """Return the run's rollout engine, from this process's own and `build()`, which builds the same in another.

        Engines of another kind, which are over servers, need a tokenizer, the end tokens, the run's seed, and `needed`:
        `needed()` is how many bytes training takes of a GPU that they share with it, as in `EngineConfig.build`.
        """
        return local

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


class ProcessCluster(Cluster):
    """Ranks and workers in a fleet: the settings of all kinds that have several processes, and what follows from them.

    A kind of cluster says by `fleet` where its processes are.
    """

    where: ClassVar[str] = "this machine"

    rollout_workers: int = Field(default=0, ge=0, le=1024)
    """Processes that sample; 0: this one does. Their number does not change any result."""

    shard_groups: int = Field(default=8, ge=1, le=10**6)
    """Groups that are decoded together, by one process, or as many as have 16 rows. Part of the result, like a seed."""

    worker_threads: int = Field(default=1, ge=1, le=1024)
    """Processor threads of each process while it samples, of this one too. Part of the result."""

    lag: int = Field(default=0, ge=0, le=64)
    """Step n trains what the weights after step n - 1 - `lag` wrote, so that other processes sample for the next steps
    while a step trains. Part of the result."""

    rollout_gpus: int = Field(default=1, ge=0, le=64)
    """GPUs of each worker, where the model is on a GPU; 0: all workers share the GPU of this process. It does not
    change any result. More than 1 are for vLLM servers, which divide the model among them (tensor parallelism)."""

    engine: Literal["own", "vllm"] = "own"
    """What samples. "vllm": a vLLM server per worker, whose tokens and log-probs are not those of oncurve's own engine;
    the old log-probs are computed by the learner, and `[correction]` applies. Part of the result."""

    vllm_arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`, like `["--max-model-len", "4096"]`. They overrule those of oncurve."""

    learner_ranks: int = Field(default=1, ge=1, le=1024)
    """Processes that compute the gradient, this one included. Their number does not change any result, unless
    `sharding` divides the model among them."""

    gradient_shards: int = Field(default=8, ge=1, le=1024)
    """The most shards of an update, a power of two and not less than `learner_ranks`: the gradient of each is computed
    by itself, and they are added in a fixed tree. An update of so few rows that its shards would take more than twice
    the processor time of one has fewer. Part of the result, like a seed. Without effect where `sharding` divides the
    model."""

    sharding: Literal["replicate", "fsdp"] = "replicate"
    """"replicate": every rank has the whole model with its optimizer. "fsdp": every rank has its part of the
    parameters, gradients and optimizer state, and the number of ranks changes results by rounding."""

    offload: bool = False
    """With sharding = "fsdp": parameters, gradients and optimizer state are in the host's memory, where the step is
    made; a GPU has the layers that are gathered, and activations. On a CPU it changes nothing."""

    rank_threads: int = Field(default=1, ge=1, le=1024)
    """Processor threads of each rank while it computes updates. Part of the result."""

    silence_seconds: float = Field(default=20.0, ge=3, le=1e6)
    """A process that has said nothing for so long, because it hangs or was stopped, is killed and replaced. Processes
    say every second that they live, whatever they compute."""

    wait_seconds: float = Field(default=1800.0, ge=1, le=1e6)
    """The longest wait for the work of another process: a rank's part of an update, a worker's shard. Then another
    process does it."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(lambda c: bool(c.gradient_shards & (c.gradient_shards - 1)), RULES["shards_not_in_pairs"]),
        Impossible(lambda c: c.sharding == "replicate" and c.learner_ranks > c.gradient_shards, RULES["idle_rank"]),
        Impossible(lambda c: c.offload and c.sharding != "fsdp", RULES["offload_undivided"]),
        Impossible(lambda c: c.engine == "vllm" and not c.rollout_workers, RULES["vllm_without_workers"]),
        Impossible(lambda c: c.engine == "own" and bool(c.vllm_arguments), RULES["arguments_without_vllm"]),
    )

    inert: ClassVar[tuple[Inert, ...]] = (
        _inert("no_workers", lambda c: not c.rollout_workers),
        _inert("rows_divided", lambda c: c.divided),
        _inert("alone", lambda c: not c.rollout_workers and c.learner_ranks == 1),
    )

    @property
    def divided(self) -> bool:
        """Return whether each rank has its part of the model alone."""
        return self.sharding == "fsdp"

    @property
    def on_this_machine(self) -> bool:
        """Return whether all processes are on this machine."""
        return True

    @property
    def served(self) -> bool:
        """Return whether vLLM servers sample."""
        return self.engine == "vllm"

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
        gpus = seen_by(models[0]) if models else None
        if self.divided:
            return self._sharded(make, gpus)
        moved = (models, torch.device(gpus.device)) if gpus is not None else ()
        make_local = cast("Callable[[], LocalLearner]", partial(make, tokenizer=None))
        fleet = self._others(partial(Rank, make_local, self.rank_threads, self.wait_seconds, *moved), gpus)
        try:
            local = make()
            if not isinstance(local, LocalLearner):
                return local  # with a critic, which has no other ranks
            return FleetLearner(local, fleet, self.gradient_shards, self.rank_threads, self.wait_seconds)
        except BaseException:
            if fleet is not None:
                fleet.close()
            raise

    def _others(self, make: Callable[[], Any], gpus: Gpus | None) -> Fleet | None:
        """Return the ranks but the first, or None where it is alone."""
        return self.fleet(make, self.learner_ranks - 1, "ranks", gpus) if self.learner_ranks > 1 else None

    def _sharded(self, make: Callable[..., Learner], gpus: Gpus | None) -> Learner:
        """Return the learner whose state is divided among the ranks, each of which cuts out its own part."""
        from oncurve.cluster import sharding  # here: without shards torch.distributed is not imported

        make = partial(sharding.offloading, make) if self.offload else make
        device = CPU if gpus is None else torch.device(gpus.device)
        recipe = partial(sharding.ShardRank, sharding.Outline(make), self.rank_threads, self.wait_seconds, device)
        fleet = self._others(recipe, gpus)
        return sharding.ShardedLearner(make, fleet, self.learner_ranks, self.rank_threads, self.wait_seconds, device)

    def check_folder(self, learner: Learner, folder: Path) -> None:
        """Raises ConfigError: not all ranks that write parts of a checkpoint see `folder`."""
        if self.divided:
            cast("Any", learner).check_folder(folder)

    def rest(self, learner: Learner, engine: RolloutEngine) -> None:
        """End ranks and workers: no step follows, and this process samples and exports by itself. Twice is allowed."""
        cast("FleetEngine", engine).rest()
        if self.divided or isinstance(learner, FleetLearner):  # and not one with a critic
            cast("Any", learner).rest()

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
        self, local: RolloutEngine, build: Callable[[], RolloutEngine], sampling: Sampling, *of_servers: Any
    ) -> RolloutEngine:
        """Return an engine that decodes shards by `rollout_workers` processes, or in this one."""

        def make_fleet(model: CausalModel) -> Fleet:
            """Return the workers' fleet, as soon as there is a model to copy."""
            gpus = seen_by(model)
            device = CPU if gpus is None or self.served else torch.device(gpus.device)
            make = build
            if self.served:
                *settings, needed = of_servers
                make = partial(VllmEngine, sampling, *settings, **self._servers(model, gpus, needed))
            worker = partial(Worker, model, make, self.worker_threads, device)
            return self.fleet(worker, self.rollout_workers, "workers", gpus)

        made = make_fleet if self.rollout_workers else None
        return FleetEngine(local, sampling, made, self.facts, self.worker_threads, self.wait_seconds)

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
        names = ("on_this_machine", "divided", "offload", "shard_groups", "lag", "served")
        same = {name: getattr(self, name) for name in names}
        return ClusterFacts(alone=False, processes=self.learner_ranks, workers=self.rollout_workers, **same)


def seen_by(model: CausalModel) -> Gpus | None:
    """Return `gpus_of` the device that a model is on."""
    return gpus_of(module_device(model.module))
