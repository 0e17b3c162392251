"""From rehearsals to the whole run: the smaller models to rehearse, and the formula for all layers, tokens and groups.

With T(l, v) the measure (seconds or bytes) of a model of l layers and v tokens in the vocabulary,

    T(L, V) = T(1, v) + (L - 1)·[T(d, v) - T(1, v)] / (d - 1) + [T(1, u) - T(1, v)]·(V - v) / (u - v)

for depths 1 and d, a small vocabulary v and a large one u. Where the model is small enough, d = L and u = V in one
model: only the groups are scaled, in proportion to their FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from oncurve.forecast.counting import scoring_flops, training_flops
from oncurve.forecast.machines import Machine
from oncurve.forecast.memory import Activations, Variant
from oncurve.forecast.rehearsal import Parts, Rehearsed, part_of, rehearse
from oncurve.forecast.shapes import StepWork

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
