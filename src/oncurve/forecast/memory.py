"""The memory of a run: bytes per parameter, keys and values, activations; and the peak.

A run holds its state throughout, and the memory of one phase at a time:

    state        N·(weight + master + moments + reference), reward models, a teacher; with an adapter of n parameters
                 N·weight + n·(weight + master + moments + reference): reference and critic share the frozen model, of
                 which nf4 takes `NF4_BYTES` per number of the layers' matrices
    rollout      weights packed for decoding; K/V of the prompts once and of every completion in flight; the sampler's
                 logits
    training     gradients and activations: at the start of a backward pass all layers' activations (and the gradients
                 of earlier micro-batches), at its end all gradients and one layer's activations; the larger counts
                 (on a CPU gradients stay from update to update: all of them in every phase)
    export       the largest tensor in float32: the files are written a tensor at a time

The peak is the sum of the process before the model, the state, and the largest phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oncurve.forecast.shapes import ModelShape, Work
from oncurve.models.head import ACCELERATOR_WORKSPACE_BYTES, FROZEN_KEPT_BYTES, KEPT_BYTES, WORKSPACE_BYTES

HEAD_BLOCKS = 2
"""Blocks of logits that the head holds at the same time: the logits or their gradient, and a temporary."""

SAMPLED_LOGITS = 64 * 2**20

HEAP = 1.35
"""The size of a CPU's heap over the memory in use, because of fragmentation. 1 where torch caches blocks."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per weight in bitsandbytes' nf4: 4 bits, a scale of 8 bits per block of 64, and for 256 of these scales one
of 32 bits (double quantisation)."""


@dataclass(frozen=True)
class Footprint:
    """Bytes per parameter of the policy, by use. `gradient`: on a GPU from backward to update only.

    `critic`: weights, masters and moments of the critic. `quantized`: the layers' frozen matrices take `NF4_BYTES` in
    the place of `weight`. Example: bfloat16 with everything else in float32 and a
    reference is `Footprint(2, 4, 8, 4, 2)`, 20 bytes.
    """

    weight: int = 2
    master: int = 4
    moments: int = 8
    gradient: int = 4
    reference: int = 0
    critic: int = 0
    quantized: bool = False

    @classmethod
    def of(
        cls,
        dtype: str = "bfloat16",
        moments: str = "float32",
        masters: str = "float32",
        reference: bool = False,
        critic: bool = False,
        averaged: bool = False,
        quantized: bool = False,
    ) -> Footprint:
        """The bytes for these settings. A float32 weight is its own master; a split one adds 16 bits to bfloat16.

        `averaged`: the reference is a moving average, which in bfloat16 has a float32 copy too.
        """
        half = dtype != "float32"
        weight = 2 if half else 4
        master = (2 if masters == "split" else 4) if half else 0
        averages = 4 if moments == "bfloat16" else 8
        other = weight + master + averages if critic else 0
        frozen = weight + (4 if averaged and half else 0)
        return cls(weight, master, averages, 4, frozen if reference else 0, other, quantized)

    @property
    def lasting(self) -> int:
        """The sum without the gradient."""
        return self.weight + self.master + self.moments + self.reference + self.critic

    @property
    def total(self) -> int:
        """The sum."""
        return self.lasting + self.gradient

    def weights(self, shape: ModelShape) -> float:
        """Return the bytes of all weights of a model as it computes with them, its adapter included."""
        packed = shape.body if self.quantized else 0
        return self.weight * (shape.parameters + shape.adapter - packed) + NF4_BYTES * packed

    def unpacked(self, shape: ModelShape) -> float:
        """Return the bytes of the largest matrix that a product unpacks: none where the weights are not quantised."""
        widest = max(shape.intermediate, shape.heads * shape.head_dim)
        return float(self.weight * shape.hidden * widest) if self.quantized else 0.0


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


def activations_of(
    shape: ModelShape, work: Work, width: int, checkpointing: bool = False, on_cpu: bool = True
) -> Activations:
    """By formula, for a gated layer in numbers of `width` bytes, h hidden, i intermediate, q = heads·head_dim:

    token    w·(4h + 3q + 2·kv·(P + C)/C + 4i): two norms with their outputs, queries, output twice, keys and values
             with the prefix, gate, up, silu and their product; w·h with checkpointing
    inside   w·(2i + 4h); with checkpointing also the bytes that `token` has without it
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    spread = (work.mean_prompt + work.completion_tokens) / work.completion_tokens
    spread = min(spread, 1.0 + work.mean_prompt)
    kept = width * (4 * shape.hidden + 3 * query + 2 * key * spread + 4 * shape.intermediate)
    inside = width * (2 * shape.intermediate + 4 * shape.hidden)
    block = WORKSPACE_BYTES if on_cpu else ACCELERATOR_WORKSPACE_BYTES
    logits = 4.0 * shape.vocabulary * work.largest_micro[1]
    most = FROZEN_KEPT_BYTES if shape.adapter else KEPT_BYTES
    fixed = HEAD_BLOCKS * min(float(block), logits) + min(float(most), logits)
    heap = HEAP if on_cpu else 1.0
    if checkpointing:
        return Activations(width * shape.hidden, inside + kept, fixed, heap)
    return Activations(kept, inside, fixed, heap)


def cache_bytes(shape: ModelShape, work: Work, width: int) -> float:
    """The largest size of keys and values: every group's prompt once, each concurrent completion at full length."""
    rows = min(work.completions, max(work.rows, work.group_size))
    prompts = rows / work.group_size
    return shape.cache_bytes(width) * (prompts * work.mean_prompt + rows * work.completion_tokens)


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


def memory_of(
    shape: ModelShape,
    work: Work,
    footprint: Footprint,
    activations: Activations,
    process: float = 0.0,
    training: float | None = None,
    packed: float = 0.0,
    reward_models: float = 0.0,
    teacher: float = 0.0,
    gradients_stay: bool = False,
) -> Memory:
    """The whole forecast.

    training    measured bytes of a training pass above the state, where they are known
    packed      bytes of weights that are packed for decoding
    reward_models    of reward models
    teacher          of a distillation's teacher
    gradients_stay   whether gradients are kept from update to update, as on a CPU
    """
    trained, width, weights = shape.trained, footprint.weight, footprint.weights(shape)
    micro_tokens, _ = work.largest_micro
    kept = activations.heap * shape.layers * activations.token * micro_tokens
    around = activations.heap * (activations.inside * micro_tokens + activations.fixed) + footprint.unpacked(shape)
    gradients = float(footprint.gradient * trained)
    outside = 0.0 if shape.adapter else float(footprint.gradient * shape.outside_layers)
    first = gradients if gradients_stay or work.micro_batches > 1 else outside
    passing = max(first + kept + around, gradients + kept / shape.layers + around)
    cache = cache_bytes(shape, work, width)
    rows = min(work.completions, max(work.rows, work.group_size))
    sampler = 3 * min(float(SAMPLED_LOGITS), 4.0 * shape.vocabulary * rows) + footprint.unpacked(shape)
    state = process + weights + trained * (footprint.lasting - width) + reward_models + teacher
    staying = gradients if gradients_stay else 0.0
    parts = {
        "process": process,
        "parameters": float(weights + trained * footprint.master),
        "optimizer": float(trained * footprint.moments),
        "gradients": gradients,
        "reference": float(trained * footprint.reference),
        "critic": float(trained * footprint.critic),
        "reward_models": reward_models,
        "teacher": teacher,
        "keys_and_values": cache,
        "activations": kept,
        "head_and_workspace": around,
    }
    phases = {
        "rollout": state + staying + packed + 1.25 * cache + sampler,
        "training": state + (training if training is not None else passing),
        "export": state + staying + 4.0 * shape.head,
    }
    return Memory(parts, phases)
