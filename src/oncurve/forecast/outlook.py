"""The forecast as a whole: predicted and available memory, seconds by phase, suggestions where it does not fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oncurve.forecast.memory import Memory, Variant
from oncurve.forecast.shapes import USUAL_RANK, AvailableMemory, Machine
from oncurve.report import rendered

NEUTRAL = ("learner.tokens_per_micro_batch", "rollout.max_concurrent", "learner.gradient_checkpointing")
"""Settings that change memory and time, and no result."""


@dataclass(frozen=True)
class Suggestion:
    """Settings that make a run smaller, and the peak it would then have."""

    settings: str
    peak: float


@dataclass(frozen=True)
class Forecast:
    """The result of `oncurve plan`.

    title      its subject                     seconds    by phase, with "decode_step" and "step"
    budget     the available memory            measured   whether seconds are scaled measurements (limits otherwise)
    notes      other remarks for the reader    processes  the run's own and those of `[cluster]` on this machine
    together   bytes of all of them; None: there is the run's own alone, or the others are not counted
    """

    title: str
    variant: Variant
    memory: Memory
    budget: AvailableMemory
    seconds: Mapping[str, float]
    measured: bool
    machine: Machine
    suggestions: Sequence[Suggestion] = ()
    notes: Sequence[str] = ()
    processes: int = 1
    together: float | None = None

    @property
    def needed(self) -> float:
        """Bytes that have to have room: the predicted peak, of all processes where there are several."""
        return self.memory.peak if self.together is None else self.together

    @property
    def fits(self) -> bool:
        """Return whether `needed` is within the available memory."""
        return self.needed <= self.budget.available

    def to_json(self) -> dict[str, object]:
        """Return all numbers, in bytes and seconds."""
        work, card = self.variant.work, self.machine
        return {
            "title": self.title,
            "parameters": self.variant.shape.parameters,
            "trained_parameters": self.variant.shape.trained,
            "bytes_per_parameter": self.variant.footprint.total,
            "work": {
                "prompts": work.prompts,
                "group_size": work.group_size,
                "prompt_tokens": work.mean_prompt,
                "completion_tokens": work.completion_tokens,
                "tokens_per_micro_batch": work.micro_tokens,
                "micro_batches": work.micro_batches,
                "updates": work.updates,
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
                "name": card.name,
                "flops": card.flops,
                "bytes_per_second": card.bandwidth,
                "source": card.source,
            },
            "suggestions": [{"settings": each.settings, "peak_bytes": round(each.peak)} for each in self.suggestions],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return all of it as text."""
        return rendered("forecast.j2", p=self, size=size, duration=duration).rstrip()


def changes(variant: Variant) -> list[tuple[str, Variant]]:
    """Return settings that can make the run smaller, each with the run that has it, the cheapest first."""
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
        ("kl.coef=0", {"reference": False}, variant.reference and not variant.keeps_kl),
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
    """Return bytes as `12.3 GB` or `845 MB`."""
    return f"{value / 1e9:,.2f} GB" if value >= 1e9 else f"{value / 1e6:,.0f} MB"


def duration(seconds: float) -> str:
    """Return seconds as `12.3 s` or `4.56 ms`."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"
