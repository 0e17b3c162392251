"""From rehearsals to the whole run: the smaller models to rehearse, and the formula for all layers, tokens and groups.

With T(l, v) the measure (seconds or bytes) of a model of l layers and v tokens in the vocabulary,

    T(L, V) = T(1, v) + (L - 1)·[T(d, v) - T(1, v)] / (d - 1) + [T(1, u) - T(1, v)]·(V - v) / (u - v)

for depths 1 and d, a small vocabulary v and a large one u. Where the model is small enough, d = L and u = V in one
model: only the groups are scaled, in proportion to their FLOPs.

Lower bounds for the time of a step: FLOPs and bytes counted, divided by the rates of the machine.

With N_b body and N_h head parameters, M prompts of P tokens, G completions of C tokens, B = M·G,
a = 4·L·heads·head_dim, numbers of w bytes, K/V of `kv` bytes a token,
R FLOP/s and BW bytes a second, each prompt computed once per group:

    prefill        M·[2·N_b·P + a·P²/2 + 2·N_h] / R
    decode         Σ_t max( [w·(N_b + N_h) + kv·(M·P + B·t)] / BW,  [2·(N_b + N_h)·B + a·B·(P + t)] / R )
    reference      a forward over prompts once and completions, head on completions only: a third of training
    train          [6·N_b·M·(P + G·C) + 6·N_h·M·G·C + 3.5·a·M·(P²/2 + G·(P·C + C²/2))] / R, for each pass
    optimizer      every byte of weights, masters, moments and gradients read, and all but the gradients written, / BW

With an adapter of n parameters the frozen matrices have no gradient of their own (4 in the place of 6), and every token
goes through the n parameters too: 2·n forward, 6·n in training.

These are limits, not measurements: no program reaches them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from oncurve.forecast.memory import Activations, Variant
from oncurve.forecast.rehearsal import Parts, Rehearsed, rehearse
from oncurve.forecast.shapes import Machine, ModelShape, StepWork


def _tokens(work: StepWork) -> tuple[float, float, float]:
    """Return the tokens of prompts and of completions, and the pairs of tokens that attend, of all groups of a step:
    Σ P²/2 + G·(P·C + C²/2)."""
    completion, group, scale = work.completion_tokens, work.group_size, work.prompts / len(work.prompt_tokens)
    attended = sum(p * p / 2 + group * (p * completion + completion**2 / 2) for p in work.prompt_tokens)
    return scale * sum(work.prompt_tokens), float(work.completions * completion), scale * attended


def prefill_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of the prompts, each once, and of one distribution after each."""
    squares = work.prompts / len(work.prompt_tokens) * sum(p * p / 2 for p in work.prompt_tokens)
    body = shape.body + shape.adapter
    return 2 * body * _tokens(work)[0] + shape.attention_flops * squares + 2 * shape.head * work.prompts


def _flops(shape: ModelShape, work: StepWork, frozen: int, adapter: int, attention: float) -> float:
    """Return FLOPs: `frozen` or `adapter` of them per parameter and token in products, the head on completions only,
    and `attention` of `attention_flops` per pair."""
    prompt, completion, attended = _tokens(work)
    every = prompt + completion
    products = frozen * (shape.body * every + shape.head * completion) + adapter * shape.adapter * every
    return products + attention * shape.attention_flops * attended


def scoring_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of one forward pass over all tokens, the head on completion tokens only."""
    return _flops(shape, work, 2, 2, 1)


def training_flops(shape: ModelShape, work: StepWork) -> float:
    """Return the FLOPs of one pass of training over all tokens: forward and backward, nothing computed twice."""
    return _flops(shape, work, 4 if shape.adapter else 6, 6, 3.5)


def decode_step_floor(shape: ModelShape, work: StepWork, machine: Machine, step: float, width: int = 2) -> float:
    """Return the seconds of the decode step that appends token `step` to every completion, by bytes or by FLOPs."""
    products, rows, prompt = shape.body + shape.head + shape.adapter, work.completions, work.mean_prompt
    traffic = width * products + shape.cache_bytes(width) * (work.prompts * prompt + rows * step)
    flops = 2 * products * rows + shape.attention_flops * rows * (prompt + step)
    return max(traffic / machine.bandwidth, flops / machine.flops)


def floors(variant: Variant, machine: Machine) -> dict[str, float]:
    """Return the least seconds of each phase of a step; `decode_step` is one step of `decode`."""
    shape, work, per = variant.shape, variant.work, variant.footprint
    decode = sum(decode_step_floor(shape, work, machine, step, per.weight) for step in range(work.completion_tokens))
    scoring, state = scoring_flops(shape, work) / machine.flops, per.weight + per.master + per.moments
    found = {
        "prefill": prefill_flops(shape, work) * work.prefills / machine.flops,
        "decode": decode,
        "reference": scoring if variant.reference else 0.0,
        "old": scoring if work.old_pass else 0.0,
        "train": work.ppo_epochs * training_flops(shape, work) / machine.flops,
        "optimizer": work.updates * shape.trained * (2 * state + per.gradient) / machine.bandwidth,
    }
    return {**found, "step": sum(found.values()), "decode_step": decode / work.completion_tokens}


CACHED_BYTES = 128 * 2**20
"""Layers of this size do not stay in a processor's cache from one decode step to the next."""

WHOLE_HEAD_BYTES = 256 * 2**20
LARGEST_HEAD = 300_000_000
SMALL_VOCABULARY = 1024
TRAIN_SECONDS = 1.2


@dataclass(frozen=True)
class Scaled:
    """The whole run, from rehearsals.

    seconds      of each phase of a step, and "decode_step"
    activations  measured; `training`: the measured bytes of a pass above the state, where it was rehearsed whole
    whole        whether the model was rehearsed with all its layers and vocabulary
    """

    seconds: dict[str, float]
    activations: Activations
    training: float | None
    whole: bool
    path_reason: str


def rehearse_and_scale(parts: Parts, variant: Variant, machine: Machine, say: Callable[[str], None]) -> Scaled:
    """Rehearse a part of the step and scale it up. It takes a few seconds on a quiet machine."""
    shape, work, formula = variant.shape, variant.work, variant.activations()
    deep = min(shape.layers, 1 + max(2, math.ceil(CACHED_BYTES / (shape.layer_products * variant.width))))
    whole = deep == shape.layers and 4 * shape.head <= WHOLE_HEAD_BYTES
    flat, few, many = 1, min(SMALL_VOCABULARY, shape.vocabulary), LARGEST_HEAD // shape.hidden
    many = min(shape.vocabulary, max(few, many))
    if whole:
        flat, few, many = deep, shape.vocabulary, shape.vocabulary
    largest = shape if whole else replace(shape, layers=deep, vocabulary=many, counted=None)
    sample = part_of(work, largest, TRAIN_SECONDS * machine.flops)
    seen: dict[tuple[int, int], Rehearsed] = {}
    for layers, vocabulary in dict.fromkeys([(flat, few), (deep, few), (flat, many)]):
        say(f"rehearsing a step: {layers} of {shape.layers} layers, {vocabulary:,} of {shape.vocabulary:,} tokens")
        seen[layers, vocabulary] = rehearse(parts, layers, vocabulary, sample, _one_pass(work))
    base, deeper, wider = seen[flat, few], seen[deep, few], seen[flat, many]

    def scaled(phase: str) -> float:
        """Return T(L, V), at least that of the largest smaller model."""
        at, at_deep, at_wide = base.seconds[phase], deeper.seconds[phase], wider.seconds[phase]
        layers = (shape.layers - flat) * max(0.0, at_deep - at) / max(1, deep - flat)
        tokens = max(0.0, at_wide - at) * (shape.vocabulary - few) / max(1, many - few)
        return max(at + layers + tokens, at_deep, at_wide)

    at = {phase: scaled(phase) for phase in ("prefill", "decode_step", "reference", "old", "train")}
    widest = max((deeper, wider), key=lambda each: each.trained)
    at["optimizer"] = widest.seconds["optimizer"] / widest.trained * shape.trained
    token, fixed, training = formula.token, formula.fixed, None
    if whole:
        token = base.saved / deep / sample.tokens
    elif deep > 1:
        token = (deeper.saved - base.saved) / (deep - 1) / sample.tokens
    if wider.held is not None:
        each = flat * token + formula.inside
        above = (wider.held - variant.footprint.gradient * wider.trained) / formula.heap
        fixed = max(0.0, above - each * sample.tokens)
        more = max(work.largest_micro[0] - sample.tokens, 0.0)
        training = wider.held + more * formula.heap * each if whole else None
    measured = Activations(token, formula.inside, fixed, formula.heap)
    return Scaled(_phases(variant, sample, at), measured, training, whole, base.path_reason)


def _one_pass(work: StepWork) -> StepWork:
    """Return the prompts whose completions are decoded together."""
    prompts = min(work.prompts, max(1, work.rows // work.group_size))
    return replace(work, prompts=prompts, prompt_tokens=work.prompt_tokens[:prompts])


def _phases(variant: Variant, sample: StepWork, at: dict[str, float]) -> dict[str, float]:
    """Return a step's seconds from those of the sample's training pass and one pass of the rollout."""
    shape, work = variant.shape, variant.work
    trained = training_flops(shape, work) / training_flops(shape, sample)
    scored = scoring_flops(shape, work) / scoring_flops(shape, sample)
    rollouts = work.prompts / _one_pass(work).prompts
    return {
        "prefill": at["prefill"] * rollouts * work.prefills,
        "decode": at["decode_step"] * (work.completion_tokens - 1) * rollouts,
        "reference": at["reference"] * scored,
        "old": at["old"] * scored,
        "train": at["train"] * trained * work.ppo_epochs,
        "optimizer": at["optimizer"] * work.updates,
        "decode_step": at["decode_step"],
    }


def part_of(work: StepWork, shape: ModelShape, flops: float) -> StepWork:
    """Return a part of one training pass that costs at most `flops`: fewer groups, then rows, then tokens."""
    groups = max(1, int(work.micro_groups))
    rows = work.group_size if work.micro_groups >= 1 else max(2, round(work.group_size * work.micro_groups))
    sample = replace(work, prompts=groups, group_size=rows, minibatches=1, ppo_epochs=1)
    while training_flops(shape, sample) > flops:
        if sample.prompts > 1:
            sample = replace(sample, prompts=-(-sample.prompts // 2))
        elif sample.group_size > 2:  # a single completion has no siblings
            sample = replace(sample, group_size=max(2, sample.group_size // 2))
        elif sample.completion_tokens > 32:
            sample = replace(sample, completion_tokens=sample.completion_tokens // 2)
        else:
            break
    return replace(sample, prompt_tokens=sample.prompt_tokens[: sample.prompts])
