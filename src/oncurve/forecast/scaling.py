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
from oncurve.forecast.memory import HEAP, Activations, Footprint, activations_of
from oncurve.forecast.rehearsal import Parts, Rehearsed, Sample, part_of, rehearse
from oncurve.forecast.shapes import ModelShape, Work

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
    share        of a training pass's FLOPs that was rehearsed, at most 1
    """

    seconds: dict[str, float]
    activations: Activations
    training: float | None
    whole: bool
    share: float
    path_reason: str


def rehearse_and_scale(
    parts: Parts,
    shape: ModelShape,
    work: Work,
    footprint: Footprint,
    machine: Machine,
    checkpointing: bool,
    say: Callable[[str], None],
) -> Scaled:
    """Rehearse a part of the step and scale it up. Takes a few seconds on a quiet machine."""
    deep = min(shape.layers, 1 + max(2, math.ceil(CACHED_BYTES / (shape.layer_products * footprint.weight))))
    rollout = _one_pass(work)
    if deep == shape.layers and 4 * shape.head <= WHOLE_HEAD_BYTES:
        training = part_of(work, shape, TRAIN_SECONDS * machine.flops)
        say("rehearsing a step of the whole model, with arbitrary weights")
        seen = rehearse(parts, Sample(shape.layers, shape.vocabulary, training, rollout))
        return _of_whole(seen, shape, work, footprint, checkpointing, training)
    few = min(SMALL_VOCABULARY, shape.vocabulary)
    many = min(shape.vocabulary, max(few, LARGEST_HEAD // shape.hidden))
    smaller = replace(shape, layers=deep, vocabulary=many, counted=None)
    training = part_of(work, smaller, TRAIN_SECONDS * machine.flops)
    seen_of: dict[tuple[int, int], Rehearsed] = {}
    for layers, vocabulary in dict.fromkeys([(1, few), (deep, few), (1, many)]):
        say(f"rehearsing a step: {layers} of {shape.layers} layers, {vocabulary:,} of {shape.vocabulary:,} tokens")
        seen_of[layers, vocabulary] = rehearse(parts, Sample(layers, vocabulary, training, rollout))
    relatives = _Relatives(seen_of[1, few], seen_of[deep, few], seen_of[1, many], few, deep, many)
    return _of_relatives(relatives, shape, work, footprint, machine, checkpointing, training)


def _one_pass(work: Work) -> Work:
    """The prompts whose completions are decoded together."""
    prompts = min(work.prompts, max(1, work.rows // work.group_size))
    return replace(work, prompts=prompts, prompt_tokens=work.prompt_tokens[:prompts])


def _phases(shape: ModelShape, work: Work, sample: Work, at: dict[str, float]) -> dict[str, float]:
    """A step's phases from those of the sample's training pass and one pass of the rollout, for the whole model."""
    trained = training_flops(shape, work) / training_flops(shape, sample)
    scored = scoring_flops(shape, work) / scoring_flops(shape, sample)
    rollouts = work.prompts / _one_pass(work).prompts
    return {
        "prefill": at["prefill"] * rollouts,
        "decode": at["decode_step"] * (work.completion_tokens - 1) * rollouts,
        "reference": at["reference"] * scored,
        "old": at["old"] * scored,
        "train": at["train"] * trained * work.ppo_epochs,
        "optimizer": at["optimizer"] * work.updates,
        "decode_step": at["decode_step"],
    }


def _of_whole(
    seen: Rehearsed, shape: ModelShape, work: Work, footprint: Footprint, checkpointing: bool, sample: Work
) -> Scaled:
    formula = activations_of(shape, work, footprint.weight, checkpointing)
    tokens, seen_tokens = work.largest_micro[0], sample.tokens
    token = seen.saved / shape.layers / seen_tokens
    gradients = footprint.gradient * shape.trained
    training = None
    fixed = formula.fixed
    if seen.held is not None:
        growing = formula.heap * (shape.layers * token + formula.inside)
        training = seen.held + max(tokens - seen_tokens, 0.0) * growing
        fixed = max(0.0, (training - gradients) / formula.heap - (shape.layers * token + formula.inside) * tokens)
    return Scaled(
        _phases(shape, work, sample, seen.seconds),
        Activations(token, formula.inside, fixed, formula.heap),
        training,
        True,
        min(1.0, seen_tokens / tokens),
        seen.path_reason,
    )


@dataclass(frozen=True)
class _Relatives:
    """The three smaller models: 1 layer and few tokens in the vocabulary, `deep` layers, `many` tokens."""

    base: Rehearsed
    deeper: Rehearsed
    wider: Rehearsed
    few: int
    deep: int
    many: int

    def of(self, shape: ModelShape, measure: Callable[[Rehearsed], float]) -> float:
        """T(L, V), at least that of the largest smaller model."""
        base, deeper, wider = measure(self.base), measure(self.deeper), measure(self.wider)
        layers = (shape.layers - 1) * max(0.0, deeper - base) / max(1, self.deep - 1)
        tokens = max(0.0, wider - base) * (shape.vocabulary - self.few) / max(1, self.many - self.few)
        return max(base + layers + tokens, deeper, wider)


def _of_relatives(
    relatives: _Relatives,
    shape: ModelShape,
    work: Work,
    footprint: Footprint,
    machine: Machine,
    checkpointing: bool,
    sample: Work,
) -> Scaled:
    names = ("prefill", "decode_step", "reference", "old", "train")
    at = {name: relatives.of(shape, lambda seen, name=name: seen.seconds[name]) for name in names}  # type: ignore[misc]
    widest = max((relatives.deeper, relatives.wider), key=lambda seen: seen.trained)
    at["optimizer"] = widest.seconds["optimizer"] / widest.trained * shape.trained
    formula = activations_of(shape, work, footprint.weight, checkpointing)
    tokens = sample.tokens
    token = formula.token
    if relatives.deep > 1:
        token = (relatives.deeper.saved - relatives.base.saved) / (relatives.deep - 1) / tokens
    fixed = formula.fixed
    if relatives.wider.held is not None:
        gradients = footprint.gradient * relatives.wider.trained
        fixed = max(0.0, (relatives.wider.held - gradients) / HEAP - (token + formula.inside) * tokens)
    return Scaled(
        _phases(shape, work, sample, at),
        Activations(token, formula.inside, fixed, formula.heap),
        None,
        False,
        min(1.0, tokens / work.largest_micro[0]),
        relatives.base.path_reason,
    )
