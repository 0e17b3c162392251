"""What is measured: a `Case` is one system on one model with one kind of step. A worker gets it as JSON.

Everything random about the work is drawn here, from the case alone, so that every system does the same: the lengths of
completions (`length`), and which groups have constant rewards (`is_constant`).
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["CELLS", "SYSTEMS", "Case", "SystemInfo", "is_constant", "length", "pattern_constant"]


RANK = 16
"""Of the adapters, on every linear layer but the head, with α = 2 · rank."""


@dataclass(frozen=True)
class SystemInfo:
    """A way of running a tool: `module` serves it, with `settings` beyond those of the case.

    bytes_per_parameter   weights, gradient, two moments, reference: the memory before the first activation
    """

    module: str
    label: str
    settings: dict[str, Any]
    bytes_per_parameter: int

    @property
    def half(self) -> bool:
        """Whether it computes in bf16."""
        return "bfloat16" in self.settings.values() or bool(self.settings.get("autocast"))


SYSTEMS: dict[str, SystemInfo] = {
    "oncurve": SystemInfo("bench.systems.ours", "oncurve", {}, 20),
    "oncurve-fp32": SystemInfo("bench.systems.ours", "oncurve, fp32", {"dtype": "float32"}, 20),
    "oncurve-lean": SystemInfo(
        "bench.systems.ours", "oncurve, lean optimizer", {"moments": "bfloat16", "masters": "split"}, 16
    ),
    "trl-fp32": SystemInfo("bench.systems.trl", "TRL, fp32", {"weights": "float32"}, 20),
    "trl-bf16": SystemInfo("bench.systems.trl", "TRL, bf16 weights", {"weights": "bfloat16"}, 10),
    "trl-autocast": SystemInfo("bench.systems.trl", "TRL, bf16 autocast", {"weights": "float32", "autocast": True}, 20),
    "trl-continuous": SystemInfo(
        "bench.systems.trl", "TRL, continuous batching", {"weights": "bfloat16", "continuous": True}, 10
    ),
    "oncurve-lora": SystemInfo("bench.systems.ours", "oncurve, LoRA", {"lora": RANK}, 4),
    "trl-lora": SystemInfo("bench.systems.trl", "TRL, PEFT, bf16 weights", {"weights": "bfloat16", "lora": RANK}, 4),
    "trl-lora-autocast": SystemInfo(
        "bench.systems.trl",
        "TRL, PEFT, bf16 weights, autocast",
        {"weights": "bfloat16", "lora": RANK, "autocast": True},
        4,
    ),
    "rlox": SystemInfo("bench.systems.rlox", "rlox", {}, 20),
}
"""Every system by its key, as results and the command line name it."""


@dataclass(frozen=True)
class Case:
    """One system, one model, one kind of step.

    system           a key of `SYSTEMS`
    model            a key of `models.SIZES`
    prompts          M, prompts per step
    group_size       G, completions per prompt
    completion       C, the largest number of tokens of a completion
    prompt_tokens    P where all prompts have exactly P tokens; None: questions as they are (about 90 tokens)
    lengths          "fixed": every completion has C tokens; "natural": log-normal, see `length`
    constant_groups  f0, the fraction of groups whose completions all have the same reward
    kl_coef          β; 0: no reference model
    vocabulary       a vocabulary size in place of the model's own
    settings         further settings for this system, which override its `SystemInfo.settings`
    """

    system: str
    model: str
    prompts: int
    group_size: int
    completion: int
    prompt_tokens: int | None = None
    lengths: str = "fixed"
    constant_groups: float = 0.0
    kl_coef: float = 0.0
    vocabulary: int | None = None
    threads: int = 2
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        """B = M · G, completions per step."""
        return self.prompts * self.group_size

    @property
    def options(self) -> dict[str, Any]:
        """The system's own settings, and over them the case's."""
        return {**SYSTEMS[self.system].settings, **dict(self.settings)}

    def under(self, system: str) -> Case:
        """Return the same work for another system."""
        return replace(self, system=system)

    def to_json(self) -> str:
        """Return one line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The inverse of `to_json`."""
        table = json.loads(text)
        table["settings"] = tuple((key, value) for key, value in table["settings"])
        return cls(**table)

    def lengths_of_step(self, step: int) -> list[list[int]]:
        """Return the tokens of every completion of step `step` (from 0): G numbers for each of its M prompts."""
        first = step * self.prompts
        return [[length(self, first + m, i) for i in range(self.group_size)] for m in range(self.prompts)]


def length(case: Case, prompt: int, sample: int) -> int:
    """Return the number of tokens of completion `sample` of the run's prompt number `prompt`, in every system.

    Natural lengths are log-normal with median 0.35 C and σ = 0.6, rounded, clamped to 1..C: 4 % reach the limit.
    """
    if case.lengths == "fixed":
        return case.completion
    draw = random.Random(f"{prompt}/{sample}").lognormvariate(math.log(0.35 * case.completion), 0.6)
    return min(case.completion, max(1, round(draw)))


def pattern_constant(fraction: float, prompt: int) -> bool:
    """Return whether prompt number `prompt` is in the fraction, spread as evenly as possible: at 0.4, 2 of any 5 in a
    row.
    """
    return math.floor((prompt + 1) * fraction + 1e-9) > math.floor(prompt * fraction + 1e-9)


def is_constant(case: Case, prompt: int) -> bool:
    """Return whether all completions of the run's prompt number `prompt` have the same reward."""
    return pattern_constant(case.constant_groups, prompt)


_SIZES = {"6.5M": (4, 8, 128), "38M": (4, 8, 128), "494M": (2, 8, 64)}

CELLS: dict[str, Case] = {
    f"{model} {lengths}": Case("oncurve", model, *shape, lengths=lengths, constant_groups=constant, kl_coef=beta)
    for model, shape in _SIZES.items()
    for lengths, constant, beta in (("fixed", 0.0, 0.04), ("natural", 0.4, 0.0))
}
"""The cells of the table: model and kind of step. `under` gives another system the same work."""
