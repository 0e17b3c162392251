"""The memory of each process of a cluster, and the split of its GPUs into ranks that train and workers that sample.

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

With `cluster.offload` the first three lines are in the host's memory. Activations, head and workspace are those of one
process: each rank computes passes of as many tokens. A worker holds the weights, keys and values, and what sampling
takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oncurve.forecast.counting import prefill_flops, scoring_flops, training_flops
from oncurve.forecast.machines import Machine
from oncurve.forecast.memory import SAMPLED_LOGITS, Memory, cache_bytes
from oncurve.forecast.outlook import Variant
from oncurve.forecast.rates import DECODE_FLOPS, SIGMA, TRAIN_FLOPS, WEIGHTS_PER_SECOND, decode_seconds
from oncurve.forecast.simulation import Lengths, Outcome, Setup, simulate

MEAN_LENGTH = 0.5
"""The mean length of completions, as a share of the longest. Assumed."""

SIMULATED_ROWS = 2048
"""Rows of a simulated step; more are taken together in bundles."""

WORTH = 0.05
"""A larger lag has to save this share of a step."""

FORKED = 35e6
"""What a rank has of its own before it has a part of the model, where it is forked: the rest is its nursery's. Measured
(`bench/results/cluster_fsdp_38M.json`)."""

LAGS = (0, 1, 2)
MOST_RANKS = 64
USUAL_SHARDS = 8
"""`cluster.gradient_shards` by default: there are as many ranks at most."""


@dataclass(frozen=True)
class Layout:
    """Processes of a run: `ranks` that train, `workers` that sample (0: rank 0 does), `sharding`, `lag`; `windowed`:
    groups are trained in the order in which they are finished."""

    ranks: int = 1
    workers: int = 0
    sharding: str = "replicate"
    lag: int = 0
    windowed: bool = False

    @property
    def tables(self) -> dict[str, int | str]:
        """As the keys of `[cluster]`."""
        tables: dict[str, int | str] = {"learner_ranks": self.ranks}
        if self.ranks > USUAL_SHARDS:
            tables["gradient_shards"] = self.ranks
        tables |= {"rollout_workers": self.workers, "sharding": self.sharding, "lag": self.lag}
        return tables | ({"order": "window"} if self.windowed and self.lag else {})


def rank_memory(variant: Variant, layout: Layout, first: bool = True) -> Memory:
    """Of one rank; `first`: of rank 0, which has the copy that workers get, or samples itself."""
    whole = variant.memory()
    shape, width = variant.shape, variant.footprint.weight
    samples = first and not layout.workers
    parts = dict(whole.parts)
    copy = variant.footprint.weights(shape)
    parts["versions"] = versions_bytes(variant, layout) if first else 0.0
    divided = layout.sharding == "fsdp"
    if divided:
        frozen = shape.parameters if shape.adapter else 0
        layer = (shape.parameters + shape.adapter - shape.outside_layers) / shape.layers
        parts["process"] = whole.parts["process"] if first or not variant.on_cpu else FORKED
        parts["parameters"] = (4.0 * shape.trained + width * frozen) / layout.ranks
        parts["optimizer"] /= layout.ranks
        parts["gradients"] /= layout.ranks
        parts["reference"] /= layout.ranks
        parts["teacher"] /= layout.ranks
        layers, sent = (2, 0) if frozen else (3, 4)
        heads = 1 + (variant.exact_kl and not frozen)
        parts["gathered"] = width * layers * layer + (width * heads + sent) * shape.outside_layers
        parts["copy"] = copy if first else 0.0
        if variant.offloaded and not variant.on_cpu:
            parts |= dict.fromkeys(("parameters", "optimizer", "gradients", "reference"), 0.0)
    state = sum(
        parts.get(name, 0.0)
        for name in ("process", "parameters", "optimizer", "reference", "critic", "reward_models", "teacher")
    )
    state += parts["versions"] + parts.get("copy", 0.0)
    staying = parts["gradients"] if variant.on_cpu and not divided else 0.0
    sampler = whole.phases["rollout"] - whole.phases["export"] if samples else 0.0
    training = whole.phases["training"] + parts["versions"]
    if divided:
        working = parts["activations"] + parts["head_and_workspace"]
        training = state + parts["gradients"] + parts["gathered"] + working
    phases = {"training": training, "export": state + staying + 4.0 * shape.head}
    if divided and first and whole.parts["teacher"]:
        phases["start"] = state - parts["optimizer"] + whole.parts["teacher"]
    if samples:
        phases["rollout"] = phases["export"] + sampler
    else:
        parts["keys_and_values"] = 0.0
    return Memory(parts, phases)


def versions_bytes(variant: Variant, layout: Layout) -> float:
    """Weights of the versions that wait with a lag, with the newest and the one that is being written."""
    return (layout.lag + 2.0) * variant.footprint.weight * variant.shape.trained if layout.lag else 0.0


def worker_memory(variant: Variant, workers: int = 1) -> Memory:
    """Of a process that samples; `workers` divide the rows of a step among them."""
    shape, work, width = variant.shape, variant.work, variant.footprint.weight
    rows = max(work.group_size, min(work.rows, -(-work.completions // max(1, workers))))
    cache = cache_bytes(shape, replace(work, rows=rows), width)
    parts = {
        "process": variant.process,
        "parameters": variant.footprint.weights(shape),
        "keys_and_values": cache,
    }
    sampler = 3 * min(float(SAMPLED_LOGITS), 4.0 * shape.vocabulary * rows) + variant.footprint.unpacked(shape)
    return Memory(parts, {"rollout": sum(parts.values()) + 0.25 * cache + sampler})


def on_one_host(variant: Variant, layout: Layout, apart: bool = False) -> float:
    """Bytes of all processes of a layout on one machine with a CPU, where copies are forked. `apart`: the others are on
    other machines, so that rank 0 is alone.

    Ranks and workers are each forked from a process with the model, which stays; of an adapter's base model there is
    one for all processes of a kind. The process that ranks with shards are forked from has no model.
    """
    memory = variant.memory()
    whole = memory.parts["parameters"]
    shared = whole if variant.shape.adapter else 0.0
    if layout.sharding == "fsdp":
        first = rank_memory(variant, layout).peak
        others = (layout.ranks - 1) * rank_memory(variant, layout, first=False).peak
        others += variant.process if layout.ranks > 1 else 0.0
    else:
        first = memory.peak + versions_bytes(variant, layout)
        others = (layout.ranks - 1) * (memory.phases["training"] - shared) + whole if layout.ranks > 1 else 0.0
    if apart:
        return first
    if not layout.workers:
        return first + others
    return first + others + layout.workers * (whole - shared + 1.25 * memory.parts["keys_and_values"]) + whole


def setup_of(variant: Variant, layout: Layout, machine: Machine) -> Setup:
    """The simulation of a step of `variant` on GPUs of a kind, by formulas."""
    shape, work, width = variant.shape, variant.work, variant.footprint.weight
    mean = max(1.0, MEAN_LENGTH * work.completion_tokens)
    lengths = Lengths(mean, SIGMA if work.completion_tokens > 1 else 0.0, work.completion_tokens)
    each = shape.cache_bytes(width) * (work.mean_prompt + work.completion_tokens)
    token, row = decode_seconds(shape.parameters, shape.cache_bytes(width), work.mean_prompt + mean / 2, machine, width)
    copies = 1 if layout.workers else layout.ranks
    room = 0.9 * machine.memory - width * shape.parameters * (1 if layout.workers else 7 / copies)
    rows = int(max(1.0, min(room / each, float(work.rows))))
    usual = replace(work, completion_tokens=max(1, round(mean)))
    passes = work.ppo_epochs * training_flops(shape, usual)
    scored = scoring_flops(shape, usual) * (int(variant.reference) + int(work.old_pass))
    bundle = max(1, -(-work.completions // SIMULATED_ROWS))
    group = max(1, work.group_size // bundle)
    bundle = -(-work.group_size // group)
    return Setup(
        work.prompts,
        group,
        lengths,
        max(1, layout.workers),
        token,
        row * bundle,
        (passes + scored) / (TRAIN_FLOPS * machine.flops * layout.ranks),
        rows=max(group, rows // bundle),
        prefill_seconds=prefill_flops(shape, usual) / work.prompts / (DECODE_FLOPS * machine.flops),
        handover_seconds=width * shape.trained / WEIGHTS_PER_SECOND if layout.workers else 0.0,
        lag=float(layout.lag),
        windowed=layout.windowed,
        whole=not layout.windowed,
    )


def layouts(gpus: int, sharding: str, most: int = MOST_RANKS) -> list[Layout]:
    """The splits of `gpus` into 1, 2, 4, ... ranks, `most` at most, and workers on the rest."""
    ranks = [1 << power for power in range(most.bit_length()) if 1 << power <= min(gpus, most)]
    return [Layout(count, gpus - count, sharding) for count in ranks if count < gpus or count == gpus == 1]


def fits(variant: Variant, layout: Layout, memory: float) -> bool:
    """Whether a rank and a worker each fit into `memory` bytes."""
    worker = worker_memory(variant, layout.workers).peak if layout.workers else 0.0
    return max(rank_memory(variant, layout).peak, worker) <= memory


def best_layout(
    variant: Variant, choices: list[Layout], machine: Machine, holds: Callable[[Layout], bool]
) -> tuple[Layout, dict[int, Outcome]]:
    """The split with the shortest step, and its outcome by lag, of the lags that `holds` has room for. The lag is the
    largest that is worth it."""

    def lagging(layout: Layout) -> Outcome:
        ahead = replace(layout, lag=1)
        return simulate(setup_of(variant, ahead if holds(ahead) else layout, machine), 3)

    steps = {layout: lagging(layout).step_seconds for layout in choices}
    best = min(choices, key=lambda layout: steps[layout])
    lags = [lag for lag in LAGS if not lag or (best.workers and holds(replace(best, lag=lag)))]
    by_lag = {lag: simulate(setup_of(variant, replace(best, lag=lag), machine), 3) for lag in lags}
    worth = 0
    for lag in lags[1:]:
        if by_lag[lag].step_seconds < (1 - WORTH) * by_lag[worth].step_seconds:
            worth = lag
    return replace(best, lag=worth), by_lag
