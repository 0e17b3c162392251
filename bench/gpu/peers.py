"""Part C of the day: and the others? TRL's `GRPOTrainer` on the same card, shapes and lengths, where TRL is installed.

bf16 weights, no KL, prompts as ready token ids; every completion has the length of the case, by a logits processor. All
rows are generated at once, and trained in micro-batches of `MICRO_ROWS` rows, which share their padding.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.gpu.day import Place, Section
from bench.gpu.limits import finish
from bench.gpu.runs import case_of, make_model
from bench.systems import trl
from bench.systems.rewards import hashed

MICRO_ROWS = 16


def steps(place: Place, count: int, settings: dict[str, Any], system: str = "trl-bf16", **work: Any) -> None:
    """Note the seconds of `count` steps, generation apart, and the memory they take."""
    from transformers import TrainerCallback

    case = case_of(place, "0.5B", **work).under(system)
    micro = min(case.rows, MICRO_ROWS)
    label = f"{system} {case.model} {case.prompts} prompts {case.lengths} {case.completion} {settings}"
    found: list[dict[str, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
        """Measures each step."""

        def on_step_begin(self, *_: Any, **parts: Any) -> None:
            finish(place.device)
            self.started = time.perf_counter()
            found.append({"generate": 0.0})

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            finish(place.device)
            found[-1]["step"] = time.perf_counter() - self.started
            place.note(f"{label}: step {len(found) - 1}", found[-1])
            control.should_training_stop = len(found) >= count

    make_model(place, case.model)
    own = {
        "use_cpu": place.device.type == "cpu",
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": case.rows // micro,
        "gradient_checkpointing": False,
        **settings,
    }
    trainer = trl.make_trainer(case, hashed, Clock(), **own)
    trl.force_lengths(case, trainer.model, lambda: [n for each in case.lengths_of_step(len(found) - 1) for n in each])
    name = "generate_batch" if case.options.get("continuous") else "generate"
    generate = getattr(trainer.model, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        finish(place.device)
        started = time.perf_counter()
        answer = generate(*arguments, **named)
        finish(place.device)
        found[-1]["generate"] += time.perf_counter() - started
        return answer

    setattr(trainer.model, name, timed)
    trainer.train()
    if place.device.type == "cuda":
        place.note(
            f"{label}: allocated, reserved", [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        )


def fixed(place: Place) -> None:
    """Measure 64 groups of 8 completions of 512 tokens."""
    steps(place, 2, {})


def natural(place: Place) -> None:
    """Measure the same with completions of 1 to 1,024 tokens."""
    steps(place, 2, {}, completion=1024, lengths="natural")


def continuous(place: Place) -> None:
    """Measure a quarter of the first as it is, and with transformers' continuous batching."""
    steps(place, 2, {}, prompts=16)
    steps(place, 2, {}, "trl-continuous", prompts=16)


SECTIONS = {"fixed": Section(fixed, 200), "natural": Section(natural, 200), "continuous": Section(continuous, 250)}
