"""Names on the command line and in `oncurve.train` as settings: models, data, rewards, presets."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

from oncurve.base.errors import ConfigError, refuse, shown
from oncurve.components import Component
from oncurve.config import RunConfig, find_recipe, load_config, tables_of
from oncurve.rewards import REWARD_KINDS, path_of


class CommonSettings(TypedDict, total=False):
    """Arguments of `oncurve.train` that are settings; None or left out: as the recipe or preset has it."""

    learning_rate: Annotated[float | None, "learner.learning_rate"]
    """The step size of the optimizer."""

    warmup_steps: Annotated[int | None, "learner.warmup_steps"]
    """Updates until the learning rate has its full value."""

    minibatches: Annotated[int | None, "learner.minibatches"]
    """Updates per step and pass."""

    group_size: Annotated[int | None, "rollout.group_size"]
    """Completions per prompt."""

    max_new_tokens: Annotated[int | None, "rollout.max_new_tokens"]
    """The longest completion."""

    temperature: Annotated[float | None, "rollout.temperature"]
    """The temperature of sampling."""

    prompts_per_step: Annotated[int | None, "data.prompts_per_step"]
    """Prompts of one rollout."""

    system: Annotated[str | None, "data.system"]
    """A system message before every prompt."""

    eval_fraction: Annotated[float | None, "data.eval_fraction"]
    """The share of rows that is held out for evaluation."""

    eval_every: Annotated[int | None, "eval.every"]
    """Steps between evaluations."""

    kl_coef: Annotated[float | None, "kl.coef"]
    """The weight of the KL penalty."""

    lora_rank: Annotated[int | None, "lora.rank"]
    """Train an adapter of this rank instead of all weights."""

    epochs: Annotated[float | None, "run.epochs"]
    """Passes over the data, in place of `steps`."""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

_COMMON = {hint.__metadata__[0]: name for name, hint in get_type_hints(CommonSettings, include_extras=True).items()}

ARGUMENT_OF: dict[str, str] = _TABLES["train"] | _COMMON
"""The argument of `train` for a setting."""

SFT_ARGUMENT_OF: dict[str, str] = _TABLES["sft"]
"""The argument of `sft` for a setting."""

OTHER_NAMES = {name: argument for argument, names in _TABLES["other_names"].items() for name in names.split()}
"""The argument that another name means."""


def arguments_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are one setting each, by key; None: not given."""
    return {key: value for key, name in ARGUMENT_OF.items() if (value := named.get(name)) is not None}


def configured(
    recipe: str | Path | None,
    preset: str | Sequence[str] | None,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    word: str = "preset",
) -> tuple[RunConfig, Path]:
    """Return the configuration of a recipe, a preset ("grpo" if there is neither), arguments, settings and overrides.

    `word` is how the caller writes `preset`, for messages. Raises ConfigError for whatever is wrong.
    """
    chosen = "grpo" if preset is None and recipe is None else preset
    for name in chosen if isinstance(chosen, (list, tuple)) else () if chosen is None else (chosen,):
        if not isinstance(name, str):
            raise ConfigError(f"{word}: expected a preset's name, or a list of them, got {shown(preset)}")
        find_recipe(name, word)
    extends = [] if chosen is None else [f"extends={json.dumps(chosen)}"]
    return load_config(recipe, [*extends, *overrides], settings=tables_of(arguments, settings))


def data_arguments(data: Any) -> dict[str, Any]:
    """Return the data as settings: a file, or rows in memory."""
    if data is None:
        return {}
    kind, key, value = ("files", "path", str(data)) if isinstance(data, (str, Path)) else ("list", "rows", data)
    return {"data.kind": kind, f"data.{key}": value}


def environment_arguments(environment: Any, tools: Any) -> dict[str, Any]:
    """Return an environment and tools, as classes and functions or as paths, as settings. Raises ConfigError."""
    if isinstance(environment, Component) and not tools:
        return {"environment": environment}
    table: dict[str, Any] = {}
    if isinstance(environment, str):
        table = {"kind": "tools", "path": environment} if ":" in environment else {"kind": environment}
    elif isinstance(environment, Mapping):
        paths = (
            all(isinstance(each, str) and ":" in each for each in environment.values()) and "kind" not in environment
        )
        code = "path" if paths else "classes" if all(map(callable, environment.values())) else None
        table = dict(environment) if code is None or "path" in environment else {"kind": "tools", code: environment}
    elif callable(environment):
        table = {"kind": "tools", "classes": environment}
    elif environment is not None:
        raise ConfigError(f"environment: expected classes, a path 'file.py:Name' or a table, got {shown(environment)}")
    given = [tools] if isinstance(tools, str) or callable(tools) else list(tools or ())
    if given:
        paths = all(isinstance(each, str) for each in given)
        if not paths and not all(map(callable, given)):
            raise ConfigError("tools: expected functions, or paths like 'file.py:add'")
        table = {"kind": "tools", **table, ("tools" if paths else "functions"): tuple(given)}
    return {f"environment.{key}": value for key, value in table.items()}


def objects_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings that may hold objects which no file can: rewards, and an environment of them."""
    environment: Any = config.environment
    return {"rewards": list(config.rewards), **({"environment": environment} if environment.objects else {})}


def check_for_stage(said: Iterable[str]) -> None:
    """Raise ConfigError for a setting that a warm start has under another name: it would have no effect."""
    instead = {"learner.learning_rate": "learning_rate", "data.prompts_per_step": "batch_size"}
    instead |= {f"run.{name}": name for name in ("steps", "epochs")}
    refuse(f"{key}: a warm start has its own, sft.{instead[key]}" for key in said if key in instead)


def reward_arguments(reward: Any) -> dict[str, Any]:
    """Return the rewards as settings: one, or several."""
    if reward is None:
        return {}
    alone = isinstance(reward, (str, Mapping, Component)) or callable(reward) or not isinstance(reward, Sequence)
    return {"rewards": [_reward_table(item) for item in ([reward] if alone else reward)]}


def _reward_table(reward: Any) -> Any:
    if isinstance(reward, (Mapping, Component)):
        return reward
    if isinstance(reward, str):
        if ":" in reward:
            return {"kind": "python", "path": reward}
        if reward.endswith(".py"):
            raise ConfigError(f"reward: {reward} names no function; write {reward}:NAME")
        is_model = reward not in REWARD_KINDS and ("/" in reward or Path(reward).is_dir())
        return {"kind": "model", "path": reward} if is_model else {"kind": reward}
    if callable(reward):
        path = path_of(reward)
        return {"kind": "python", "function": reward} if path is None else {"kind": "python", "path": path}
    raise ConfigError(f"reward: expected a function, a kind, a path 'file.py:name' or a table, got {reward!r}")
