"""The memory of a run: bytes per parameter, keys and values, activations; and the peak.

A run holds its state throughout, and the memory of one phase at a time:

    state        N·(weight + master + moments + reference), reward models, a teacher; with an adapter of n parameters
                 N·weight + n·(weight + master + moments + reference): reference and critic share the frozen model, of
                 which nf4 takes `NF4_BYTES` per number of the layers' matrices
    rollout      weights packed for decoding; K/V of the prompts once and of every completion in flight; the sampler's
                 logits. On a GPU K/V take half of what is free at most, and graphs have memory of their own
    training     gradients and activations: at the start of a backward pass all layers' activations (and the gradients
                 of earlier micro-batches), at its end all gradients and one layer's activations; the larger counts
                 (on a CPU gradients stay from update to update: all of them in every phase). On a GPU K/V and graphs
                 stay, if the card has room for both, and are freed before each update if not
    export       the largest tensor in float32: the files are written a tensor at a time

The peak is the sum of the process before the model, the state, and the largest phase.

The memory of all processes of `[cluster]` on one machine with a CPU, where copies are forked.

`sharding = "replicate"`: each rank holds what one process holds. `"fsdp"`, with N parameters, R ranks and weights of w
bytes:

    parameters      4·N / R, the float32 shard, which is the master; with an adapter of n, (w·N + 4·n) / R
    optimizer       moments·N / R                    gradients   4·N / R; with an adapter n in the place of N
    reference       N / R·w; none where it is the model with its adapter off
    teacher         its bytes / R; rank 0 has it whole at the start
    gathered        w·3 layers, and (w + 4)·(what is outside the layers): whole while they compute, with their gradient;
                    with an adapter, where no gradient of them is sent, w·2 layers, and w·(what is outside);
                    for the exact KL w·(what is outside) of a reference with weights of its own, too
    copy            (N + n)·w on rank 0, which is sent to the workers or samples; with a lag, lag + 2 times more for the
                    versions that wait

Activations, head and workspace are those of one process: each rank computes passes of as many tokens. A worker holds
the weights, keys and values, and what sampling takes. GPUs are not measured, so they are not counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from oncurve.cluster import ClusterFacts
from oncurve.forecast.shapes import ModelShape, StepWork
from oncurve.models.head import ACCELERATOR_WORKSPACE_BYTES, FROZEN_KEPT_BYTES, KEPT_BYTES, WORKSPACE_BYTES
from oncurve.models.layers import prepacked_bytes

HEAD_BLOCKS = 2
"""Blocks of logits that the head holds at the same time: the logits or their gradient, and a temporary."""

SAMPLED_LOGITS = 64 * 2**20
"""Bytes of float32 logits that a CPU samples from at a time, at most."""

PAGED_SHARE = 0.5
"""Share of a GPU's free memory that `models.decode` takes for keys and values at most."""

GRAPHS = 128 * 2**20
"""Bytes of CUDA graphs themselves and of libraries' workspaces in them. Not measured."""

HEAP = 1.35
"""The size of a CPU's heap over the memory in use, because of fragmentation. 1 where torch caches blocks."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per weight in bitsandbytes' nf4: 4 bits, a scale of 8 bits per block of 64, and for 256 of these scales one
of 32 bits (double quantisation)."""


@dataclass(frozen=True)
class Footprint:
    """Bytes per trained parameter, by use; a frozen one has its weight alone.

    A float32 weight is its own master; a split master adds 16 bits to bfloat16. `gradient`: on a GPU from backward to
    update only. `critic`: its weights, masters and moments. Example: bfloat16 with everything else in float32 and a
    reference is `Footprint(2, 4, 8, 4, 2)`, 20 bytes.
    """

    weight: int
    master: int
    moments: int
    gradient: int = 4
    reference: int = 0
    critic: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return self.weight + self.master + self.moments + self.gradient + self.reference + self.critic


@dataclass(frozen=True)
class Activations:
    """The memory of forward and backward in addition to parameters and gradients.

    token   bytes per token that one layer keeps for its backward pass
    inside  bytes per token of one layer's backward while it runs, and of the parts before and after the layers
    fixed   bytes independent of the number of tokens: chunks of logits, workspaces
    heap    factor on all of it, `HEAP`
    """

    token: float
    inside: float
    fixed: float
    heap: float = HEAP


@dataclass(frozen=True)
class Memory:
    """A forecast in bytes: `parts` by name, `phases` (each with process and state in it), the largest of which is
    `peak`, in phase `when`."""

    parts: Mapping[str, float]
    phases: Mapping[str, float]

    @property
    def when(self) -> str:
        """The phase with the peak."""
        return max(self.phases, key=lambda phase: self.phases[phase])

    @property
    def peak(self) -> float:
        """The largest of all phases."""
        return self.phases[self.when]


@dataclass(frozen=True)
class Variant:
    """The settings of a run that determine its peak, some of which a suggestion may change.

    process        bytes before the model is loaded
    averaged       whether the reference is a moving average, which in bfloat16 has a float32 copy too
    held           whether the reference has weights of its own, and is not the model with its adapter off
    reward_models, teacher   their bytes
    keeps_kl       whether `kl.coef=0` would be refused next to the run's other settings
    quantized      whether the layers' frozen matrices are stored in 4 bits
    whole_weights  whether `[cluster]` allows neither split masters nor quantised weights
    room           bytes of the card, of which a run on a GPU keeps for decoding what training leaves
    """

    shape: ModelShape
    work: StepWork
    dtype: str = "bfloat16"
    moments: str = "float32"
    masters: str = "float32"
    reference: bool = False
    checkpointing: bool = False
    on_cpu: bool = True
    process: float = 0.0
    critic: bool = False
    averaged: bool = False
    held: bool = True
    reward_models: float = 0.0
    teacher: float = 0.0
    keeps_kl: bool = False
    quantized: bool = False
    whole_weights: bool = False
    room: float = math.inf

    @property
    def width(self) -> int:
        """Bytes of a number that the model computes with."""
        return 4 if self.dtype == "float32" else 2

    @property
    def footprint(self) -> Footprint:
        """Bytes per trained parameter."""
        half = self.width == 2
        master = (2 if self.masters == "split" else 4) if half else 0
        moments = 4 if self.moments == "bfloat16" else 8
        reference = self.width + (4 if self.averaged and half else 0) if self.reference and self.held else 0
        critic = self.width + master + moments if self.critic else 0
        return Footprint(self.width, master, moments, 4, reference, critic)

    @property
    def weights(self) -> float:
        """Bytes of all weights as the model computes with them, its adapter included."""
        packed = self.shape.body if self.quantized else 0
        return self.width * (self.shape.parameters + self.shape.adapter - packed) + NF4_BYTES * packed

    @property
    def rows(self) -> int:
        """Completions that are sampled at the same time: whole groups on a CPU."""
        return min(self.work.completions, max(self.work.rows, self.work.group_size if self.on_cpu else 1))

    @property
    def cache(self) -> float:
        """Bytes of keys and values: every prompt in flight once, each completion in flight at full length.

        On a GPU each of the rows may be of another prompt.
        """
        prompts = self.rows / self.work.group_size if self.on_cpu else min(self.rows, self.work.prompts)
        prompts = self.rows if self.work.turns > 1 else prompts  # rows that go on share none
        tokens = prompts * self.work.mean_prompt + self.rows * self.work.completion_tokens
        return self.shape.cache_bytes(self.width) * tokens

    def activations(self) -> Activations:
        """Return them by formula, for a gated layer of h hidden, i intermediate, q = heads·head_dim, w bytes a number:

        token    8h + w·(2h + 3q + 2·kv·(P + C)/C + 2i): two norms, of a residual in float32, with their outputs,
                 queries, output twice, keys and values with the prefix, gate and up; w·h with checkpointing
        inside   w·(4i + 4h); with checkpointing also the bytes that `token` has without it
        """
        shape, work, width = self.shape, self.work, self.width
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        spread = min((work.mean_prompt + work.completion_tokens) / work.completion_tokens, 1.0 + work.mean_prompt)
        kept = 8 * shape.hidden + width * (2 * (shape.hidden + shape.intermediate + key * spread) + 3 * query)
        inside = width * (4 * shape.intermediate + 4 * shape.hidden)
        block = WORKSPACE_BYTES if self.on_cpu else ACCELERATOR_WORKSPACE_BYTES
        logits = float(width) * shape.vocabulary * work.largest_micro[1]
        most = FROZEN_KEPT_BYTES if shape.adapter else KEPT_BYTES
        fixed = HEAD_BLOCKS * min(float(block), logits) + min(float(most), logits)
        heap = HEAP if self.on_cpu else 1.0
        if self.checkpointing:
            return Activations(width * shape.hidden, inside + kept, fixed, heap)
        return Activations(kept, inside, fixed, heap)

    def memory(self, activations: Activations | None = None, training: float | None = None) -> Memory:
        """Return the forecast.

        activations  measured ones; None: by formula
        training     the measured bytes of a training pass above the state; None: by formula
        """
        shape, work, per, found = self.shape, self.work, self.footprint, activations or self.activations()
        trained, tokens = shape.trained, work.largest_micro[0]
        widest = max(shape.intermediate, shape.heads * shape.head_dim)
        unpacked = float(self.width * shape.hidden * widest) if self.quantized else 0.0  # one matrix at a time
        kept = found.heap * shape.layers * found.token * tokens
        around = found.heap * (found.inside * tokens + found.fixed) + unpacked
        gradients = float(per.gradient * trained)
        outside = 0.0 if shape.adapter else float(per.gradient * shape.outside_layers)
        first = gradients if self.on_cpu or work.micro_batches > 1 else outside
        passing = max(first + kept + around, gradients + kept / shape.layers + around)
        state = self.process + self.weights + trained * (per.total - per.weight - per.gradient)
        state += self.reward_models + self.teacher
        training = state + (passing if training is None else training)
        staying = gradients if self.on_cpu else 0.0
        cache, logits = self.cache, 4.0 * shape.vocabulary * self.rows
        if self.on_cpu:
            decoding, freed = 1.25 * cache + 3 * min(float(SAMPLED_LOGITS), logits), True
        else:  # of all rows at once: logits, and the sums of 64 of their weights in two precisions
            cache = min(cache, PAGED_SHARE * max(0.0, self.room - state))
            decoding = cache + (self.width / 4 + 3 / 64) * logits + GRAPHS
            freed = training + decoding > self.room
        packed = prepacked_bytes(self.width * (shape.body + shape.head)) if self.on_cpu else 0
        parts = {
            "process": self.process,
            "parameters": float(self.weights + trained * per.master),
            "optimizer": float(trained * per.moments),
            "gradients": gradients,
            "reference": float(trained * per.reference),
            "critic": float(trained * per.critic),
            "reward_models": self.reward_models,
            "teacher": self.teacher,
            "keys_and_values": cache,
            "activations": kept,
            "head_and_workspace": around,
        }
        phases = {
            "rollout": state + staying + packed + decoding + unpacked,
            "training": training + (0.0 if freed else decoding),
            "export": state + staying + 4.0 * shape.head,
        }
        return Memory(parts, phases)


FORKED = 35e6
"""What a rank has of its own before it has a part of the model, where it is forked: the rest is its nursery's. Measured
(`bench/results/cluster_fsdp_38M.json`)."""


def shard_peak(variant: Variant, cluster: ClusterFacts, first: bool = True) -> float:
    """Return the peak of one rank of several that divide the model. `first`: of rank 0, which has the copy that workers
    get, or samples itself."""
    shape, width, whole = variant.shape, variant.width, variant.memory()
    parts, frozen = whole.parts, shape.parameters if shape.adapter else 0
    layer = (shape.parameters + shape.adapter - shape.outside_layers) / shape.layers
    layers, sent = (2, 0) if frozen else (3, 4)
    gathered = width * layers * layer + (width + sent) * shape.outside_layers
    optimizer = parts["optimizer"] / cluster.processes
    state = parts["process"] if first or not variant.on_cpu else FORKED
    state += (4.0 * shape.trained + width * frozen) / cluster.processes + optimizer + parts["reward_models"]
    state += (parts["reference"] + parts["teacher"]) / cluster.processes
    state += variant.weights + versions_bytes(variant, cluster) if first else 0.0
    training = parts["gradients"] / cluster.processes + gathered + parts["activations"] + parts["head_and_workspace"]
    export = 4.0 * shape.head
    samples = export + whole.phases["rollout"] - whole.phases["export"] if first and not cluster.workers else 0.0
    start = parts["teacher"] - optimizer if first else 0.0
    return state + max(training, export, samples, start)


def versions_bytes(variant: Variant, cluster: ClusterFacts) -> float:
    """Return the bytes of the versions that wait with a lag, with the newest and the one that is being written."""
    return (cluster.lag + 2.0) * variant.width * variant.shape.trained if cluster.lag else 0.0


def on_one_host(variant: Variant, cluster: ClusterFacts) -> float:
    """Return the bytes of all processes of a cluster; of rank 0 alone where the others are on other machines.

    Ranks and workers are each forked from a process with the model, which stays; of an adapter's base model there is
    one for all processes of a kind. The process that ranks with shards are forked from has no model.
    """
    memory = variant.memory()
    whole, more = memory.parts["parameters"], cluster.processes - 1
    shared = whole if variant.shape.adapter else 0.0
    if cluster.divided:
        first = shard_peak(variant, cluster)
        others = more * shard_peak(variant, cluster, first=False) + (variant.process if more else 0.0)
    else:
        first = memory.peak + versions_bytes(variant, cluster)
        others = more * (memory.phases["training"] - shared) + whole if more else 0.0
    if not cluster.on_this_machine:
        return first
    if not cluster.workers:
        return first + others
    return first + others + cluster.workers * (whole - shared + 1.25 * memory.parts["keys_and_values"]) + whole
