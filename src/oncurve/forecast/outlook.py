"""The forecast as a whole: predicted and available memory, seconds by phase, suggestions where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oncurve.forecast.machines import AvailableMemory, Machine
from oncurve.forecast.memory import Activations, Footprint, Memory, activations_of, memory_of
from oncurve.forecast.shapes import ModelShape, Work
from oncurve.models.layers import prepacked_bytes

USUAL_RANK = 16
"""The rank of an adapter that is suggested where a model does not fit: that of the preset `lora`."""

NEUTRAL = ("learner.tokens_per_micro_batch", "rollout.max_concurrent", "learner.gradient_checkpointing")
"""Settings that change memory and time, and no result."""

PART_NAMES = {
    "process": "process, before the model",
    "parameters": "parameters and masters",
    "optimizer": "optimizer's moments",
    "gradients": "gradients",
    "reference": "reference",
    "critic": "critic",
    "reward_models": "reward models",
    "teacher": "teacher",
    "keys_and_values": "keys and values",
    "activations": "activations",
    "head_and_workspace": "head and workspace",
}


@dataclass(frozen=True)
class Suggestion:
    """Settings that make a run smaller, and the peak it would then have."""

    settings: str
    peak: float
    seconds: str = ""


@dataclass(frozen=True)
class Forecast:
    """The result of `oncurve plan`.

    title     its subject                    seconds   by phase, with "decode_step" and "step"
    budget    the available memory           measured  whether seconds are scaled measurements (limits otherwise)
    notes     other remarks for the reader     processes the run's own and those of `[cluster]` on this machine
    together  bytes of all of them; None: there is the run's own alone, or the others are not counted
    """

    title: str
    shape: ModelShape
    work: Work
    footprint: Footprint
    memory: Memory
    budget: AvailableMemory
    seconds: Mapping[str, float]
    measured: bool
    machine: Machine
    suggestions: Sequence[Suggestion] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    processes: int = 1
    together: float | None = None

    @property
    def needed(self) -> float:
        """Bytes that have to have room: the predicted peak, of all processes where there are several."""
        return self.memory.peak if self.together is None else self.together

    @property
    def fits(self) -> bool:
        """Whether `needed` is within the available memory."""
        return self.needed <= self.budget.available

    def to_json(self) -> dict[str, object]:
        """All numbers, in bytes and seconds."""
        return {
            "title": self.title,
            "parameters": self.shape.parameters,
            "trained_parameters": self.shape.trained,
            "bytes_per_parameter": self.footprint.total,
            "work": {
                "prompts": self.work.prompts,
                "group_size": self.work.group_size,
                "prompt_tokens": self.work.mean_prompt,
                "completion_tokens": self.work.completion_tokens,
                "tokens_per_micro_batch": self.work.micro_tokens,
                "micro_batches": self.work.micro_batches,
                "updates": self.work.updates,
            },
            "memory": {key: round(value) for key, value in self.memory.parts.items()},
            "phases": {key: round(value) for key, value in self.memory.phases.items()},
            "peak_bytes": round(self.memory.peak),
            "peak_in": self.memory.when,
            "processes": self.processes,
            "needed_bytes": round(self.needed),
            "available_bytes": round(self.budget.available),
            "limit": self.budget.limit,
            "fits": self.fits,
            "seconds": dict(self.seconds),
            "seconds_are": "measured and scaled" if self.measured else "limits by formula",
            "machine": {
                "name": self.machine.name,
                "flops": self.machine.flops,
                "bytes_per_second": self.machine.bandwidth,
                "source": self.machine.source,
            },
            "suggestions": [
                {"settings": suggestion.settings, "peak_bytes": round(suggestion.peak)}
                for suggestion in self.suggestions
            ],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """All of it as text."""
        lines = [self.title, "", *self._memory_lines(), "", *self._time_lines()]
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        lines += ["", *self._verdict()]
        return "\n".join(lines)

    def _memory_lines(self) -> list[str]:
        per = self.footprint
        adapter = self.shape.adapter
        each = "a parameter of the adapter" if adapter else "a parameter"
        trained = f"{per.weight + per.master} bytes"
        frozen = f"{per.weight} bytes, frozen" + (", the layers' in 4 bits" if per.quantized else "")
        without = "none: the model with its adapter off" if self.seconds.get("reference") else "none: no KL term"
        says = {
            "parameters": f"{self.shape.parameters:,} × {frozen}; {adapter:,} × {trained}"
            if adapter
            else f"{self.shape.parameters:,} × {trained}",
            "optimizer": f"{per.moments} bytes {each}",
            "gradients": f"{per.gradient} bytes {each}",
            "reference": f"{per.reference} bytes {each}" if per.reference else without,
            "critic": f"{per.critic} bytes {each}",
            "keys_and_values": "while sampling, at full length",
            "activations": f"{self.work.largest_micro[0]:,.0f} tokens a pass, while training",
            "head_and_workspace": "while training",
        }
        head = ["Memory"]
        body = [
            f"  {PART_NAMES[name]:<26} {size(value):>10}   {says.get(name, '')}".rstrip()
            for name, value in self.memory.parts.items()
            if value or name not in ("process", "critic", "reward_models", "teacher")
        ]
        peak = f"  {'predicted peak':<26} {size(self.memory.peak):>10}   in {self.memory.when}"
        others = f"this one and {self.processes - 1} of [cluster]"
        if self.processes == 1:
            others = "the run's own process; those of [cluster] are elsewhere"
        whole = f"  {'all processes here':<26} {size(self.needed):>10}   {others}"
        return [*head, *body, peak, *([] if self.together is None else [whole])]

    def _time_lines(self) -> list[str]:
        if not self.seconds:
            return []
        source = f"{self.machine.flops / 1e9:,.0f} GFLOP/s, {self.machine.bandwidth / 1e9:,.0f} GB/s"
        head = f"A step on {self.machine.name} ({source}, {self.machine.source})"
        kind = "as measured on parts of it" if self.measured else "LIMITS by formula, which nothing reaches"
        lines = [f"{head}: {kind}"]
        for name, seconds in self.seconds.items():
            if name == "decode":
                steps = f"{self.work.completion_tokens:,} tokens, {duration(self.seconds['decode_step'])} a step"
                lines.append(f"  {name:<12} {duration(seconds):>10}   {steps}")
            elif name not in ("decode_step", "step") and (seconds or name not in ("reference", "old")):
                lines.append(f"  {name:<12} {duration(seconds):>10}")
        return [*lines, f"  {'step':<12} {duration(self.seconds['step']):>10}   and what the rewards take"]

    def _verdict(self) -> list[str]:
        budget = f"{size(self.budget.available)} ({self.budget.limit})"
        if self.fits:
            return [f"It fits: {size(self.needed)} of {budget}."]
        lines = [f"It does not fit: {size(self.needed)} of {budget}."]
        if not self.suggestions:
            return [*lines, "No setting makes it small enough: take a smaller model, or more memory."]
        fitting = [suggestion.peak <= self.budget.available for suggestion in self.suggestions]
        listed = [
            f"  {suggestion.settings:<60} {size(suggestion.peak):>10}{', which fits' if fits else ''}"
            for suggestion, fits in zip(self.suggestions, fitting, strict=True)
        ]
        rest = (
            [] if any(fitting) else ["All of them together do not make it fit: take a smaller model, or more memory."]
        )
        return [*lines, "What makes it smaller:", *listed, *rest]


@dataclass(frozen=True)
class Variant:
    """The settings of a run that a suggestion may change and that determine the peak."""

    shape: ModelShape
    work: Work
    dtype: str
    moments: str
    masters: str
    reference: bool
    checkpointing: bool
    on_cpu: bool = True
    process: float = 0.0
    critic: bool = False
    averaged: bool = False
    reward_models: float = 0.0
    held: bool = True
    """Whether the reference has weights of its own, and is not the model with its adapter off."""
    teacher: float = 0.0
    offloaded: bool = False
    """Whether ranks that divide the model keep their parts in the host's memory."""
    exact_kl: bool = False
    """Whether the KL is taken over the whole vocabulary, which needs the reference's head in an update."""
    moving: bool = False
    """Whether the run has settings of a moving reference, which are refused next to `kl.coef=0`."""
    quantized: bool = False
    """Whether the layers' frozen matrices are stored in 4 bits."""
    whole_weights: bool = False
    """Whether `[cluster]` allows neither split masters nor quantised weights."""

    @property
    def footprint(self) -> Footprint:
        """Bytes per trained parameter (a frozen one has its weight alone)."""
        held = self.reference and self.held
        others = (held, self.critic, self.averaged, self.quantized)
        return Footprint.of(self.dtype, self.moments, self.masters, *others)

    def activations(self) -> Activations:
        """By formula."""
        return activations_of(self.shape, self.work, self.footprint.weight, self.checkpointing, self.on_cpu)

    def memory(self, activations: Activations | None = None, training: float | None = None) -> Memory:
        """The forecast, with measured activations where they are given."""
        found = activations or self.activations()
        width = self.footprint.weight
        packed = prepacked_bytes(width * (self.shape.body + self.shape.head), width == 2) if self.on_cpu else 0
        state = (self.footprint, found, self.process, training, packed, self.reward_models, self.teacher)
        return memory_of(self.shape, self.work, *state, gradients_stay=self.on_cpu)


def changes(variant: Variant) -> list[tuple[str, Variant]]:
    """Settings that can make the run smaller, and the run with each of them, those that cost least first."""
    tokens = max(256, int(variant.work.largest_micro[0]) // 4)
    smaller = replace(variant.work, micro_tokens=tokens)
    adapted = replace(variant.shape, adapter=variant.shape.low_rank(USUAL_RANK))
    rows = max(variant.work.group_size, min(variant.work.rows, variant.work.completions) // 4)
    split = variant.masters == "float32" and variant.dtype != "float32" and not variant.whole_weights
    packed = variant.shape.adapter and not (variant.quantized or variant.whole_weights or variant.on_cpu)
    tried: list[tuple[str, dict[str, Any], bool]] = [
        (f"learner.tokens_per_micro_batch={tokens}", {"work": smaller}, variant.work.micro_tokens > tokens),
        (f"rollout.max_concurrent={rows}", {"work": replace(variant.work, rows=rows)}, variant.work.rows > rows),
        ("learner.gradient_checkpointing=true", {"checkpointing": True}, not variant.checkpointing),
        ('model.dtype="bfloat16"', {"dtype": "bfloat16"}, variant.dtype == "float32"),
        ('learner.moments="bfloat16"', {"moments": "bfloat16"}, variant.moments == "float32"),
        ('learner.masters="split"', {"masters": "split"}, split),
        ("reference.mixup_alpha=1.0", {"averaged": False}, variant.reference and variant.averaged),
        ("kl.coef=0", {"reference": False}, variant.reference and not variant.moving),
        (f"lora.rank={USUAL_RANK}", {"shape": adapted}, not variant.shape.adapter),
        ('model.quantization="nf4"', {"quantized": True}, bool(packed)),
    ]
    return [(settings, replace(variant, **changed)) for settings, changed, open_ in tried if open_]


def suggestions(
    variant: Variant,
    room: float,
    factor: float = 1.0,
    peak_of: Callable[[Variant], float] = lambda variant: variant.memory().peak,
) -> list[Suggestion]:
    """Return settings that make the run smaller: each that alone saves 2 %, then those that fit into `room` together.

    Of the latter those that change a result are left out where the others are enough without them. `factor` is
    measurement over formula for the run as it is, and scales the peaks, which are `peak_of` a variant: by default of
    one process.
    """
    now, room = peak_of(variant), room / factor
    alone = [(settings, peak_of(changed)) for settings, changed in changes(variant)]
    found = [Suggestion(settings, peak * factor) for settings, peak in alone if peak < 0.98 * now]
    words, peak = _together(variant, room, peak_of, [])
    left_out: list[str] = []
    for key in reversed([each for each in words if each not in NEUTRAL]):
        fewer, lower = _together(variant, room, peak_of, [*left_out, key])
        if lower <= room and fewer.keys() < words.keys():
            words, peak, left_out = fewer, lower, [*left_out, key]
    together = Suggestion(" ".join(words.values()), peak * factor)
    return found if not words or together in found else [*found, together]


def _together(
    variant: Variant, room: float, peak_of: Callable[[Variant], float], without: Sequence[str]
) -> tuple[dict[str, str], float]:
    """Return settings by key, and the peak with them, which is at most `room` where `changes` can make it so.

    The peak is counted again after each: the next is the first of `changes` that lowers it, but of those that change a
    result the first that saves 2 %, if there is one.
    """
    words: dict[str, str] = {}
    peak = peak_of(variant)
    while peak > room:
        steps = [(settings.partition("=")[0], settings, changed) for settings, changed in changes(variant)]
        open_ = [(*step, peak_of(step[2])) for step in steps if step[0] not in without]
        lower = [step for step in open_ if step[3] < peak]
        if not lower:
            break
        good = (step for step in lower if step[0] in NEUTRAL or step[3] < 0.98 * peak)
        key, words[key], variant, peak = next(good, lower[0])
    return words, peak


def size(value: float) -> str:
    """`12.3 GB`, `845 MB`."""
    return f"{value / 1e9:,.2f} GB" if value >= 1e9 else f"{value / 1e6:,.0f} MB"


def duration(seconds: float) -> str:
    """`12.3 s`, `4.56 ms`."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"
