"""The memory of all processes of `[cluster]` on one machine with a CPU, where copies are forked.

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

from __future__ import annotations

from dataclasses import dataclass

from oncurve.forecast.memory import Variant

FORKED = 35e6
"""What a rank has of its own before it has a part of the model, where it is forked: the rest is its nursery's. Measured
(`bench/results/cluster_fsdp_38M.json`)."""


@dataclass(frozen=True)
class Layout:
    """Processes of a run: `ranks` that train, `workers` that sample (0: rank 0 does); `divided`: ranks divide the
    model; `lag`: steps between sampling and training."""

    ranks: int = 1
    workers: int = 0
    divided: bool = False
    lag: int = 0


def shard_peak(variant: Variant, layout: Layout, first: bool = True) -> float:
    """Return the peak of one rank of several that divide the model. `first`: of rank 0, which has the copy that workers
    get, or samples itself."""
    shape, width, whole = variant.shape, variant.width, variant.memory()
    parts, frozen = whole.parts, shape.parameters if shape.adapter else 0
    layer = (shape.parameters + shape.adapter - shape.outside_layers) / shape.layers
    layers, sent = (2, 0) if frozen else (3, 4)
    gathered = width * layers * layer + (width + sent) * shape.outside_layers
    optimizer = parts["optimizer"] / layout.ranks
    state = parts["process"] if first or not variant.on_cpu else FORKED
    state += (4.0 * shape.trained + width * frozen) / layout.ranks + optimizer + parts["reward_models"]
    state += (parts["reference"] + parts["teacher"]) / layout.ranks
    state += variant.weights + versions_bytes(variant, layout) if first else 0.0
    training = parts["gradients"] / layout.ranks + gathered + parts["activations"] + parts["head_and_workspace"]
    export = 4.0 * shape.head
    samples = export + whole.phases["rollout"] - whole.phases["export"] if first and not layout.workers else 0.0
    start = parts["teacher"] - optimizer if first else 0.0
    return state + max(training, export, samples, start)


def versions_bytes(variant: Variant, layout: Layout) -> float:
    """Return the bytes of the versions that wait with a lag, with the newest and the one that is being written."""
    return (layout.lag + 2.0) * variant.width * variant.shape.trained if layout.lag else 0.0


def on_one_host(variant: Variant, layout: Layout, apart: bool = False) -> float:
    """Return the bytes of all processes of a layout. `apart`: the others are on other machines, so rank 0 is alone.

    Ranks and workers are each forked from a process with the model, which stays; of an adapter's base model there is
    one for all processes of a kind. The process that ranks with shards are forked from has no model.
    """
    memory = variant.memory()
    whole, more = memory.parts["parameters"], layout.ranks - 1
    shared = whole if variant.shape.adapter else 0.0
    if layout.divided:
        first = shard_peak(variant, layout)
        others = more * shard_peak(variant, layout, first=False) + (variant.process if more else 0.0)
    else:
        first = memory.peak + versions_bytes(variant, layout)
        others = more * (memory.phases["training"] - shared) + whole if more else 0.0
    if apart:
        return first
    if not layout.workers:
        return first + others
    return first + others + layout.workers * (whole - shared + 1.25 * memory.parts["keys_and_values"]) + whole
