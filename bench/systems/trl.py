"""TRL's `GRPOTrainer`, in its own loop: a callback waits for a command before each step and answers after it.

Prompts are token ids already (tokenizing costs nothing). Completions end at the case's lengths by a logits processor,
or by each request's `max_new_tokens` under continuous batching. Gradient checkpointing, its default, is off: that is
faster, and there is memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TrainerCallback

from bench import models
from bench.cases import Case, is_constant
from bench.systems.probe import Probe
from bench.systems.rewards import hashed
from bench.systems.worker import Channel

__all__ = ["force_lengths", "make_trainer", "serve"]

STEPS = 64


class _OverError(Exception):
    """The parent has ended the run."""


class _Forced:
    """A logits processor: row r ends with EOS as token `lengths[r]`, and EOS occurs nowhere else."""

    def __init__(self, lengths: list[int], prompt_tokens: int, eos: int, longest: int) -> None:
        self._ends = {n: [r for r, own in enumerate(lengths) if own == n] for n in set(lengths) if n < longest}
        self._prompt_tokens = prompt_tokens
        self._eos = eos

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, self._eos] = -torch.inf
        rows = self._ends.get(input_ids.shape[1] - self._prompt_tokens + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self._eos] = 0.0
        return scores


def make_trainer(case: Case, reward: Callable[..., list[float]], callback: TrainerCallback, **others: Any) -> Any:
    """Return the trainer of the case; `others` are arguments of `GRPOConfig` in place of the case's."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    options = case.options
    rows = models.token_rows(case, STEPS)
    arguments = {
        "output_dir": tempfile.mkdtemp(prefix="bench-trl-"),
        "use_cpu": True,
        "bf16": bool(options.get("autocast")),
        "model_init_kwargs": {"dtype": options["weights"]},
        "per_device_train_batch_size": case.rows,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": bool(options.get("checkpointing")),
        "num_generations": case.group_size,
        "max_completion_length": case.completion,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "beta": case.kl_coef,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "max_steps": STEPS,
        "shuffle_dataset": False,
        "use_transformers_continuous_batching": bool(options.get("continuous")),
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": STEPS,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    data = Dataset.from_list([{"prompt": str(i), "constant": is_constant(case, i)} for i in range(len(rows))])
    trainer = GRPOTrainer(
        model=str(models.model_path(case.model, case.vocabulary)),
        reward_funcs=reward,
        args=GRPOConfig(**{**arguments, **others}),
        train_dataset=data,
        processing_class=models.load_tokenizer(),
        callbacks=[callback],
        peft_config=_adapter(options["lora"]) if "lora" in options else None,
    )
    trainer._tokenize_prompts = lambda prompts: ([rows[int(prompt)] for prompt in prompts], None, {})
    return trainer


def _adapter(rank: int) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


class _Steps(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
    """Waits before each step, answers after it."""

    def __init__(self, case: Case, channel: Channel, probe: Probe) -> None:
        self.case, self.channel, self.probe = case, channel, probe
        self.step, self.started = 0, 0.0
        self.lengths: list[int] = []

    def reward(self, **batch: Any) -> list[float]:
        """Return the reward, which also records the completions."""
        self.lengths = [len(ids) for ids in batch["completion_ids"]]
        return hashed(**batch)

    def lengths_of_step(self) -> list[int]:
        """Return the tokens of every row of this step."""
        return [n for group in self.case.lengths_of_step(self.step) for n in group]

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The optimizer exists now: watch it, and report that the worker is ready."""
        self.probe.timed(parts["optimizer"], "step", "optimizer")
        self.channel.ready(dtype=str(next(parts["model"].parameters()).dtype))

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Wait for the command."""
        if not self.channel.wants_step():
            raise _OverError
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Answer."""
        self.channel.done(self.probe.report(time.perf_counter() - self.started, self.lengths))
        self.step += 1


def force_lengths(case: Case, model: Any, lengths: Callable[[], list[int]]) -> None:
    """`model.generate` ends every row at its length in `lengths()`; so does continuous batching."""
    if case.options.get("continuous"):
        _force_lengths_of_requests(lengths)
        return
    eos = models.load_tokenizer().eos_token_id
    generate = model.generate

    def forced(input_ids: Tensor, **keywords: Any) -> Any:
        processor = _Forced(lengths(), input_ids.shape[1], eos, case.completion)
        return generate(input_ids=input_ids, logits_processor=LogitsProcessorList([processor]), **keywords)

    model.generate = forced


def _force_lengths_of_requests(lengths_of_step: Callable[[], list[int]]) -> None:
    """Continuous batching: a request's `max_new_tokens` is its length, and no token ends it."""
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

    add_requests, add_request = ContinuousBatchingManager.add_requests, ContinuousBatchingManager.add_request
    lengths: dict[str, int] = {}

    def add_all(manager: Any, inputs: list[list[int]], **keywords: Any) -> Any:
        first = manager._request_counter
        lengths.update({f"req_{first + row}": n for row, n in enumerate(lengths_of_step())})
        return add_requests(manager, inputs, **keywords)

    def add_one(manager: Any, input_ids: list[int], request_id: str, **keywords: Any) -> Any:
        keywords |= {"max_new_tokens": lengths.pop(request_id), "eos_token_id": -1}
        return add_request(manager, input_ids, request_id=request_id, **keywords)

    ContinuousBatchingManager.add_requests, ContinuousBatchingManager.add_request = add_all, add_one


def _watch(trainer: Any, probe: Probe) -> None:
    """Phases by TRL's own functions. Its `training_step` includes the rollout, which is subtracted from "train"."""
    probe.timed(trainer, "training_step", "train")
    probe.timed(trainer, "_prepare_inputs", "rest")
    probe.timed(trainer, "_calculate_rewards", "reward")
    passes = "_get_per_token_logps_and_entropies"
    probe.timed(trainer, passes, lambda: "train" if torch.is_grad_enabled() else "reference")
    probe.timed(trainer.accelerator, "clip_grad_norm_", "optimizer")
    probe.count_tokens(trainer.model)
    if trainer.ref_model is not None:
        probe.count_tokens(trainer.ref_model)


def serve(case: Case, channel: Channel) -> None:
    """Take a training step per command."""
    probe = Probe()
    steps = _Steps(case, channel, probe)
    trainer = make_trainer(case, steps.reward, steps)
    force_lengths(case, trainer.model, steps.lengths_of_step)
    if case.options.get("continuous"):
        probe.timed(trainer.model, "generate_batch", "decode")
    else:
        probe.timed_generate(trainer.model)
    _watch(trainer, probe)
    try:
        trainer.train()
    except _OverError:
        return
