"""The settings that people turn most, as arguments of `oncurve.train`."""

from __future__ import annotations

from typing import TypedDict


class CommonSettings(TypedDict, total=False):
    """Arguments of `oncurve.train` that are settings; None or left out: as the recipe or preset has it."""

    learning_rate: float | None
    """`learner.learning_rate`: the step size of the optimizer."""

    warmup_steps: int | None
    """`learner.warmup_steps`: updates until the learning rate has its full value."""

    minibatches: int | None
    """`learner.minibatches`: updates per step and pass."""

    group_size: int | None
    """`rollout.group_size`: completions per prompt."""

    max_new_tokens: int | None
    """`rollout.max_new_tokens`: the longest completion."""

    temperature: float | None
    """`rollout.temperature` of sampling."""

    prompts_per_step: int | None
    """`data.prompts_per_step`: prompts of one rollout."""

    system: str | None
    """`data.system`: a system message before every prompt."""

    eval_fraction: float | None
    """`data.eval_fraction`: the share of rows that is held out for evaluation."""

    eval_every: int | None
    """`eval.every`: steps between evaluations."""

    kl_coef: float | None
    """`kl.coef`: the weight of the KL penalty."""

    lora_rank: int | None
    """`lora.rank`: train an adapter of this rank instead of all weights."""

    epochs: float | None
    """`run.epochs`: passes over the data, in place of `steps`."""


KEY_OF = {
    "learning_rate": "learner.learning_rate",
    "warmup_steps": "learner.warmup_steps",
    "minibatches": "learner.minibatches",
    "group_size": "rollout.group_size",
    "max_new_tokens": "rollout.max_new_tokens",
    "temperature": "rollout.temperature",
    "prompts_per_step": "data.prompts_per_step",
    "system": "data.system",
    "eval_fraction": "data.eval_fraction",
    "eval_every": "eval.every",
    "kl_coef": "kl.coef",
    "lora_rank": "lora.rank",
    "epochs": "run.epochs",
}
"""The setting of each argument."""
