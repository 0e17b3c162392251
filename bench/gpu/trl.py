"""TRL's `GRPOTrainer` on the same card, shape and lengths, where TRL is installed. Part of `bench.gpu`.

bf16 weights, no KL, prompts as ready token ids, every completion forced to C tokens; micro-batches of `MICRO_ROWS`
rows, the whole step generated at once. Gradient checkpointing, its default, is off.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

MICRO_ROWS = 16


def measure(
    module: Any, plan: Any, device: torch.device, finish: Callable[[torch.device], None]
) -> dict[str, Any] | None:
    """Return seconds of a step (median, the first left out) and peak memory; None without TRL, the error where it
    fails.
    """
    if find_spec("trl") is None or find_spec("datasets") is None:
        return None
    try:
        return _measure(module, plan, device, finish)
    except Exception as error:  # a peer's failure is a result, not the benchmark's end
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _measure(module: Any, plan: Any, device: torch.device, finish: Callable[[torch.device], None]) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOTrainer

    from bench.models import load_tokenizer

    clock = _clock(partial(finish, device))
    generator = torch.Generator().manual_seed(0)
    shape = ((plan.steps + 1) * plan.prompts, plan.prompt_tokens)
    prompts = torch.randint(256, shape, generator=generator).tolist()
    trainer = GRPOTrainer(
        model=module,
        reward_funcs=lambda completion_ids, **_: [float(len(ids) + ids[-1] % 7) for ids in completion_ids],
        args=_arguments(plan, device),
        train_dataset=Dataset.from_list([{"prompt": str(index)} for index in range(len(prompts))]),
        processing_class=load_tokenizer(),
        callbacks=[clock],
    )
    trainer._tokenize_prompts = lambda numbers: ([prompts[int(number)] for number in numbers], None, {})
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    trainer.train()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"step_seconds": statistics.median(clock.seconds[1:]), "peak_bytes": peak}


def _clock(finish: Callable[[], None]) -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
        """Records the seconds of each step."""

        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """The step begins."""
            finish()
            self.started = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """The step ends."""
            finish()
            self.seconds.append(time.perf_counter() - self.started)

    return Clock()


def _arguments(plan: Any, device: torch.device) -> Any:
    from trl import GRPOConfig

    rows = plan.prompts * plan.group_size
    micro = min(rows, max(plan.group_size, MICRO_ROWS))
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench-trl-"),
        use_cpu=device.type == "cpu",
        bf16=False,  # the weights are bf16
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        gradient_checkpointing=False,
        num_generations=plan.group_size,
        max_completion_length=plan.completion,
        generation_kwargs={"min_new_tokens": plan.completion},
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        learning_rate=1e-6,
        max_steps=plan.steps + 1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
