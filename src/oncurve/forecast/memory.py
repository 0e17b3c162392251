"""Where the memory goes: bytes a parameter, keys and values, activations; and the peak of a run.

A run holds its state throughout, and one phase's own memory at a time:

    state        N·(weight + master + moments + reference), and reward models
    rollout      weights packed for decoding; K/V of the prompts once and of every completion in flight; the sampler's
                 logits
    training     gradients and activations: at the start of a backward pass all layers' activations (and the gradients
                 of earlier micro-batches), at its end all gradients and one layer's activations; the larger counts
                 (on a CPU gradients stay from update to update: all of them in every phase)
    export       the largest tensor in float32: the files are written a tensor at a time

The peak is the process as it was before the model, the state, and the largest phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oncurve.forecast.shapes import ModelShape, Work
from oncurve.models.fused_head import ACCELERATOR_WORKSPACE_BYTES, KEPT_BYTES, WORKSPACE_BYTES

__all__ = ["Activations", "Footprint", "Memory", "activations_of", "cache_bytes", "memory_of"]

HEAD_BLOCKS = 2
"""Blocks of logits that the head holds at one time: the logits or their gradient, and a temporary."""

SAMPLED_LOGITS = 64 * 2**20

HEAP = 1.35
"""What a heap holds over what is in use, on a CPU: freed pieces between living ones. 1 where torch caches blocks."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one parameter, by what holds them. `gradient`: on a GPU from backward to update only.

    `critic`: another model's weights, masters and moments, a parameter of the policy's each. Example: bfloat16 with
    everything else in float32 and a reference is `Footprint(2, 4, 8, 4, 2)`, 20 bytes.
    """

    weight: int = 2
    master: int = 4
    moments: int = 8
    gradient: int = 4
    reference: int = 0
    critic: int = 0

    @classmethod
    def of(
        cls,
        dtype: str = "bfloat16",
        moments: str = "float32",
        masters: str = "float32",
        reference: bool = False,
        critic: bool = False,
        averaged: bool = False,
    ) -> Footprint:
        """By settings: a float32 weight is its own master; a split master adds the low 16 bits to a bfloat16 weight.

        `averaged`: the reference is a moving average, which a bfloat16 one keeps in float32 beside it.
        """
        half = dtype != "float32"
        weight = 2 if half else 4
        master = (2 if masters == "split" else 4) if half else 0
        averages = 4 if moments == "bfloat16" else 8
        other = weight + master + averages if critic else 0
        frozen = weight + (4 if averaged and half else 0)
        return cls(weight, master, averages, 4, frozen if reference else 0, other)

    @property
    def lasting(self) -> int:
        """Without the gradient."""
        return self.weight + self.master + self.moments + self.reference + self.critic

    @property
    def total(self) -> int:
        """All of it."""
        return self.lasting + self.gradient


@dataclass(frozen=True)
class Activations:
    """What forward and backward hold beside parameters and gradients.

    token   bytes a token that one layer keeps for its backward pass
    inside  bytes a token that one layer's backward needs while it runs, and what stands before and after the layers
    fixed   bytes whatever the number of tokens: chunks of logits, workspaces
    heap    factor on all of it, see `HEAP`
    """

    token: float
    inside: float
    fixed: float
    heap: float = HEAP


def activations_of(
    shape: ModelShape, work: Work, width: int, checkpointing: bool = False, on_cpu: bool = True
) -> Activations:
    """By formula, for a gated layer in numbers of `width` bytes, h hidden, i intermediate, q = heads·head_dim:

    token    w·(4h + 3q + 2·kv·(P + C)/C + 4i): two norms and what they give, queries, output twice, keys and
             values behind the prefix, gate, up, silu and their product
    inside   w·(2i + 4h), with checkpointing also what `token` is without, which is w·h then
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    behind = (work.mean_prompt + work.completion_tokens) / work.completion_tokens
    behind = min(behind, 1.0 + work.mean_prompt)
    kept = width * (4 * shape.hidden + 3 * query + 2 * key * behind + 4 * shape.intermediate)
    inside = width * (2 * shape.intermediate + 4 * shape.hidden)
    block = WORKSPACE_BYTES if on_cpu else ACCELERATOR_WORKSPACE_BYTES
    logits = 4.0 * shape.vocabulary * work.largest_micro[1]
    fixed = HEAD_BLOCKS * min(float(block), logits) + min(float(KEPT_BYTES), logits)
    heap = HEAP if on_cpu else 1.0
    if checkpointing:
        return Activations(width * shape.hidden, inside + kept, fixed, heap)
    return Activations(kept, inside, fixed, heap)


def cache_bytes(shape: ModelShape, work: Work, width: int) -> float:
    """Keys and values at their most: every group's prompt once, and each completion in flight at full length."""
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
        """The most that is held at any time."""
        return self.phases[self.when]


def memory_of(
    shape: ModelShape,
    work: Work,
    footprint: Footprint,
    activations: Activations,
    process: float = 0.0,
    training: float | None = None,
    packed: float = 0.0,
    judges: float = 0.0,
    gradients_stay: bool = False,
) -> Memory:
    """The whole forecast.

    training    what a training pass was seen to hold over the state, where that is known
    packed      bytes of weights that are put in order for decoding
    judges      bytes of reward models
    gradients_stay   whether they are kept from update to update (`models.gradients`), as on a CPU
    """
    number, width = shape.parameters, footprint.weight
    micro_tokens, _ = work.largest_micro
    kept = activations.heap * shape.layers * activations.token * micro_tokens
    beside = activations.heap * (activations.inside * micro_tokens + activations.fixed)
    gradients = float(footprint.gradient * number)
    first = gradients if gradients_stay or work.micro_batches > 1 else float(footprint.gradient * shape.outside_layers)
    passing = max(first + kept + beside, gradients + kept / shape.layers + beside)
    cache = cache_bytes(shape, work, width)
    rows = min(work.completions, max(work.rows, work.group_size))
    sampler = 3 * min(float(SAMPLED_LOGITS), 4.0 * shape.vocabulary * rows)
    state = process + number * footprint.lasting + judges
    staying = gradients if gradients_stay else 0.0
    parts = {
        "process": process,
        "parameters": float(number * (footprint.weight + footprint.master)),
        "optimizer": float(number * footprint.moments),
        "gradients": gradients,
        "reference": float(number * footprint.reference),
        "critic": float(number * footprint.critic),
        "reward_models": judges,
        "keys_and_values": cache,
        "activations": kept,
        "head_and_workspace": beside,
    }
    phases = {
        "rollout": state + staying + packed + 1.25 * cache + sampler,
        "training": state + (training if training is not None else passing),
        "export": state + staying + 4.0 * shape.head,
    }
    return Memory(parts, phases)
