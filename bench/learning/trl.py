"""TRL's `GRPOTrainer` on a recipe of oncurve: every setting that TRL has as well, the same prompts in the same order as
token ids, the same reward.

`DIFFERENCES` lists what remains different; it goes into the results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.learning.watch import Job, Watch

__all__ = ["DIFFERENCES", "arguments", "train_trl"]

DIFFERENCES = (
    "Randomness of sampling: each its own.",
    "Advantage: oncurve divides by std + 1e-6, TRL by std + 1e-4.",
    "Warm-up: TRL's first update has learning rate 0, oncurve's 1/W of the peak.",
    "Precision: oncurve as its recipe says on this machine (bf16 with float32 masters where the processor has it), TRL "
    "float32: bf16 weights would lose its small updates, and at this size overhead and not arithmetic decides.",
    "TRL is spared tokenizing (prompts come as ids) and gradient checkpointing (its default), and logs nothing.",
    "TRL's step is timed between its own callbacks on_step_begin and on_step_end.",
)

LOSS_TYPES = {"TokenMean": "dapo", "SeqMeanTokenMean": "grpo"}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
"""oncurve's names in TRL's."""


def arguments(config: Any, seed: int) -> dict[str, Any]:
    """Return the recipe as keywords of `GRPOConfig`.

    Raises KeyError for an aggregation that `LOSS_TYPES` does not have.
    """
    rows = config.data.prompts_per_step * config.rollout.group_size
    return {
        "seed": seed,
        "max_steps": config.run.steps,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": 1,
        "num_generations": config.rollout.group_size,
        "max_completion_length": config.rollout.max_new_tokens,
        "temperature": config.rollout.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "learning_rate": config.learner.learning_rate,
        "lr_scheduler_type": SCHEDULES[config.learner.schedule],
        "warmup_steps": config.learner.warmup_steps,
        "adam_beta1": config.learner.betas[0],
        "adam_beta2": config.learner.betas[1],
        "adam_epsilon": config.learner.epsilon,
        "weight_decay": config.learner.weight_decay,
        "max_grad_norm": config.learner.max_grad_norm,
        "num_iterations": config.learner.ppo_epochs,
        "beta": config.kl.coef,
        "use_bias_correction_kl": False,
        "loss_type": LOSS_TYPES[type(config.aggregation).__name__],
        "epsilon": config.objective.clip_low,
        "epsilon_high": config.objective.clip_high,
        "scale_rewards": config.advantage.scale,
        "mask_truncated_completions": config.filter.mask_truncated,
    }


def _prompts(config: Any, base: Path) -> list[Any]:
    """Return every prompt of the run in oncurve's order."""
    from oncurve.run import assemble, order_of

    with assemble(config, base) as run:
        return order_of(run.config, run.prompts).take(0, config.run.steps * config.data.prompts_per_step)[0]


def _right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Return the recipe's reward, as the built-in task defines it."""
    from oncurve.tasks.arithmetic import is_correct

    return [float(is_correct(text, right)) for text, right in zip(completions, answer, strict=True)]


def make_trainer(config: Any, prompts: list[Any], seed: int, callback: Any) -> Any:
    """Return the trainer without tokenization: prompts are ids already."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(config.model.path, padding_side="left")
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench-trl-"),
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        disable_dropout=True,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **arguments(config, seed),
    )
    rows = [{"prompt": str(i), "answer": prompt.columns["answer"]} for i, prompt in enumerate(prompts)]
    trainer = GRPOTrainer(
        model=str(config.model.path),
        reward_funcs=_right,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer._tokenize_prompts = lambda numbers: ([list(prompts[int(i)].ids) for i in numbers], None, {})
    return trainer


def _callback(watch: Watch) -> Any:
    """Time every step, and evaluate after it."""
    from transformers import TrainerCallback

    class Timer(TrainerCallback):
        trainer: Any = None

        def save(self, folder: Path) -> None:
            self.trainer.model.save_pretrained(folder)
            self.trainer.processing_class.save_pretrained(folder)

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            watch.begin(self.save, dtype=str(next(parts["model"].parameters()).dtype))

        def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            watch.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            watch.stop(float(self.trainer._metrics["train"]["reward"][-1]), self.save)

    return Timer()


def train_trl(job: Job, watch: Watch) -> None:
    """The recipe as TRL runs it; ends with `RunOver`."""
    config, base = job.config()
    callback = _callback(watch)
    callback.trainer = make_trainer(config, _prompts(config, base), job.seed, callback)
    callback.trainer.train()
