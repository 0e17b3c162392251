"""The members of a cluster, and the settings of those that have several processes: ranks of a learner, and workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field

from oncurve.cluster.facts import ClusterFacts
from oncurve.components import Component, Impossible, Inert
from oncurve.learner import Learner
from oncurve.models import CausalModel
from oncurve.rollout import RolloutEngine, Sampling, Tokenizer


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
        self,
        local: RolloutEngine,
        build: Callable[[], RolloutEngine],
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        needed: Callable[[], float] = lambda: math.inf,
    ) -> RolloutEngine:
        """Return the run's rollout engine, from this process's own and `build()`, which builds the same in another.

        `needed()` is how many bytes training takes of a GPU that an engine of another kind shares with it. The rest is
        for such an engine, as in `EngineConfig.build`.
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


class ProcessSettings(Cluster):
    """Settings of ranks and workers, and what follows from it."""

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
        Impossible(
            lambda cluster: bool(cluster.gradient_shards & (cluster.gradient_shards - 1)),
            "cluster.gradient_shards: shards are added in a tree of pairs, so there must be 1, 2, 4, 8, ... of them",
        ),
        Impossible(
            lambda cluster: cluster.sharding == "replicate" and cluster.learner_ranks > cluster.gradient_shards,
            "cluster.learner_ranks: a rank without a shard would have nothing to do; lower it, or raise "
            "cluster.gradient_shards, which is part of the result",
        ),
        Impossible(
            lambda cluster: cluster.offload and cluster.sharding != "fsdp",
            "cluster.offload: only a model that is divided among the ranks is moved to the host's memory; set "
            'cluster.sharding to "fsdp", or leave it out',
        ),
        Impossible(
            lambda cluster: cluster.engine == "vllm" and not cluster.rollout_workers,
            'cluster.engine: "vllm" samples by workers, and there are none; set cluster.rollout_workers to 1 or more',
        ),
        Impossible(
            lambda cluster: cluster.engine == "own" and bool(cluster.vllm_arguments),
            'cluster.vllm_arguments: they are for cluster.engine = "vllm"; leave them out',
        ),
    )

    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("cluster.rollout_gpus",),
            ("cluster.rollout_workers",),
            lambda cluster: not cluster.rollout_workers,
            "without cluster.rollout_workers this process samples",
        ),
        Inert(
            ("cluster.gradient_shards",),
            ("cluster.sharding",),
            lambda cluster: cluster.divided,
            'cluster.sharding = "fsdp" divides the rows of an update among the ranks',
        ),
        Inert(
            ("cluster.silence_seconds", "cluster.wait_seconds"),
            ("cluster.rollout_workers", "cluster.learner_ranks"),
            lambda cluster: not cluster.rollout_workers and cluster.learner_ranks == 1,
            "without cluster.rollout_workers and further cluster.learner_ranks there is no other process",
        ),
    )

    @property
    def threads_per_process(self) -> int:
        """Processors that another process needs, be it a rank or a worker."""
        return max(self.rank_threads, self.worker_threads)

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
