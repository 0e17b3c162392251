"""What `oncurve.train` and the command line name, as settings: models, data, rewards, presets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.components import Component
from oncurve.config import Argument, RunConfig, find_recipe, load_config, tables_of
from oncurve.rewards import REWARD_KINDS, path_of
from oncurve.run.common import KEY_OF


def arguments_of(named: Mapping[str, Any]) -> list[Argument]:
    """The arguments that are one setting each, by name; None: not given."""
    keys = {"template": "data.template", "steps": "run.steps", "seed": "run.seed", **KEY_OF}
    return [Argument(name, keys[name], value) for name, value in named.items() if value is not None]


def configured(
    recipe: str | Path | None,
    preset: str | Sequence[str] | None,
    arguments: Sequence[Argument],
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    word: str = "preset",
) -> tuple[RunConfig, Path]:
    """The configuration of a recipe, a preset ("grpo" if there is neither), arguments, settings and overrides.

    `word` is how the caller writes `preset`, for messages. Raises ConfigError for whatever is wrong.
    """
    chosen = "grpo" if preset is None and recipe is None else preset
    for name in chosen if isinstance(chosen, (list, tuple)) else () if chosen is None else (chosen,):
        if not isinstance(name, str):
            raise ConfigError(f"{word}: expected a preset's name, or a list of them, got {shown(preset)}")
        find_recipe(name, word)
    extends = [] if chosen is None else [f"extends={json.dumps(chosen)}"]
    return load_config(recipe, [*extends, *overrides], settings=tables_of(arguments, settings))


def data_arguments(data: Any) -> list[Argument]:
    """The data as settings: a file, or rows in memory."""
    if data is None:
        return []
    kind, key, value = ("files", "path", str(data)) if isinstance(data, (str, Path)) else ("list", "rows", data)
    return [Argument("data", "data.kind", kind), Argument("data", f"data.{key}", value)]


def reward_arguments(reward: Any) -> list[Argument]:
    """The rewards as settings: one, or several."""
    if reward is None:
        return []
    alone = isinstance(reward, (str, Mapping, Component)) or callable(reward) or not isinstance(reward, Sequence)
    return [Argument("reward", "rewards", [_reward_table(item) for item in ([reward] if alone else reward)])]


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
