"""The settings of a run by `oncurve.GRPO`: the setting of each argument, and the settings that it does not use.

An argument is a setting by another name (`SETTING_OF`), so that the same value in `settings` is the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncurve.advantages import needs_of
from oncurve.base.errors import ConfigError, refuse
from oncurve.components import Component
from oncurve.config import RUN, Layer, RunConfig, check_config, inert_rules, load, read_layers, tables_of

SETTING_OF = {
    "group_size": "rollout.group_size",
    "learning_rate": "learner.learning_rate",
    "kl_coef": "kl.coef",
    "max_new_tokens": "rollout.max_new_tokens",
    "max_grad_norm": "learner.max_grad_norm",
    "temperature": "rollout.temperature",
    "eos_ids": "rollout.eos_ids",
    "seed": "run.seed",
}
"""The setting of each argument."""

OTHER_NAMES = {
    **dict.fromkeys(("reward", "reward_func", "reward_funcs", "reward_function"), "reward_fn"),
    **dict.fromkeys(("reference", "reference_model"), "ref_model"),
    **dict.fromkeys(("policy", "model_name_or_path"), "model"),
    **dict.fromkeys(("args", "config"), "settings"),
    **dict.fromkeys(("epochs", "n_epochs", "num_train_epochs", "steps"), "n_epochs of train()"),
    **dict.fromkeys(("prompts", "data", "train_dataset", "dataset"), "prompts of train()"),
}

WITHOUT_MEANING = {
    "run.steps": "train(prompts, n_epochs) says how many",
    "run.epochs": "train(prompts, n_epochs) says how many",
    "advantage.teacher": "oncurve.train loads a teacher, and GRPO does not",
    "advantage.template": "the prompts are token ids, without columns",
    "run.name": "nothing is written",
    "run.threads": "call torch.set_num_threads",
    "run.grace_seconds": "signals are left to Python",
    "run.max_minutes": "train(prompts, n_epochs) says how many steps; nothing could be continued",
    "model": "the module is given",
    "data": "every step takes all prompts that train is given",
    "sft": "the module is given as it is; oncurve.sft trains one on demonstrations before",
    "rewards": "reward_fn is the reward",
    "reward_model": "reward_fn is the reward",
    "iterative": "there is no reward model to train between steps",
    "checkpoint": "nothing is written; save writes the weights",
    "eval": "evaluate is a call of its own",
    "rollouts": "nothing is written",
    "cluster": "updates are made in this process; oncurve.train has other ones",
    "tracking": "nothing is written; train returns the metrics of each step",
    "filter.dynamic_sampling": "every step takes all prompts that train is given",
    "environment": "there is no tokenizer for what an environment says",
    "rollout.stop": "there is no tokenizer that would find a text; eos_ids end completions",
}
"""Settings and sections that a run by `GRPO` does not use, and why; giving one is an error."""


def config_of(
    values: Mapping[str, Any], said: frozenset[str], preset: str, settings: Mapping[str, Any] | None
) -> RunConfig:
    """Return the settings of a run: given values, over the preset, over the defaults of other arguments."""
    tables = tables_of({SETTING_OF[name]: value for name, value in values.items() if name in said}, settings)
    chosen_here = _given(tables)
    _refuse_unused(chosen_here)
    layers = [(layer.name, _keys(layer)) for layer in read_layers(preset)[0]]
    for name, keys in layers:
        if not name.startswith("preset "):  # a recipe of the user's
            _refuse_unused(keys)
    # The preset "grpo" is the class defaults, written out: it chooses nothing.
    chosen = {key for name, keys in layers if name != "preset grpo" for key in keys}
    left_out = [name for name in values if name not in said and SETTING_OF[name] not in chosen]
    for name in left_out:
        section, _, key = SETTING_OF[name].partition(".")
        table = tables.setdefault(section, {})
        if isinstance(table, dict):
            table.setdefault(key, values[name])
    config, _, _ = load(RUN, preset, settings=tables)
    if config.iterative.steps:
        raise ConfigError(
            f"preset {preset!r}: an iteration ends with the training of a reward model, and here reward_fn is the "
            "reward; use oncurve.train, or for the moving reference alone preset='grpo_paper' with "
            f"settings={{'reference': {{'every': {config.iterative.steps}}}}}"
        )
    if config.filter.dynamic_sampling:
        raise ConfigError(f"preset {preset!r}: {WITHOUT_MEANING['filter.dynamic_sampling']}; use oncurve.train")
    if "steps" in needs_of(config.advantage):
        raise ConfigError(
            'advantage.kind: "process" needs rewards of steps, and reward_fn gives one number for all of them; '
            "use oncurve.train with a reward that scores steps, or another preset"
        )
    prompts = max(config.data.prompts_per_step, config.learner.minibatches)  # train_step checks their number
    config = config.model_copy(update={"data": config.data.model_copy(update={"prompts_per_step": prompts})})
    check_config(config)
    lost = [(key, rule.reason) for rule in inert_rules(config) for key in rule.keys if key in chosen_here]
    refuse(f"{key}: set to no effect: {reason}" for key, reason in lost)  # there is no plan to print it
    return config


def _keys(layer: Layer) -> list[str]:
    return [".".join(map(str, path)) for path, _ in layer.assignments]


def _given(tables: Mapping[str, Any]) -> list[str]:
    """Return the keys of tables, as `"section.key"`; the section alone where it is no table."""
    keys = list[str]()
    for section, table in tables.items():
        if isinstance(table, (Mapping, Component)):
            names = table.model_fields_set if isinstance(table, Component) else table
            keys += [f"{section}.{name}" for name in names]
        else:
            keys.append(section)
    return keys


def _refuse_unused(keys: Iterable[str]) -> None:
    """Raise ConfigError with a line for each of `keys` that a run by `GRPO` does not use."""
    reasons = {key: WITHOUT_MEANING.get(key.partition(".")[0]) or WITHOUT_MEANING.get(key) for key in keys}
    refuse(f"{key}: set to no effect: {reason}" for key, reason in reasons.items() if reason is not None)
