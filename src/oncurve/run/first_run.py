"""`oncurve train MODEL --data FILE --reward REWARD`: a run without a recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from oncurve.config import Argument, RunConfig, names_recipe
from oncurve.errors import ConfigError, command
from oncurve.run.api import configured, data_arguments, reward_arguments


def command_config(
    target: str,
    overrides: Sequence[str] = (),
    data: str | None = None,
    rewards: Sequence[str] = (),
    presets: Sequence[str] = (),
) -> tuple[RunConfig, Path, str]:
    """The configuration of the words of `oncurve train`, the folder in which relative paths start, and a name.

    The name is that of the recipe or preset, after which the run's folder is called.

    target    a recipe, or with `data` or `rewards` a model
    data      as the argument `data` of `oncurve.train`: a file or another source
    rewards   kinds, paths "file.py:name", reward models
    presets   later ones win; without a recipe and a preset "grpo"

    Raises ConfigError: a model without data and rewards, and whatever is wrong with the settings.
    """
    is_model = not names_recipe(target) and ("/" in target or os.path.isdir(target))
    if is_model and data is None and not rewards:
        example = command("train", target, "--data", "train.jsonl", "--reward", "math")
        raise ConfigError(f"{target} is no recipe; to train a model, name data and a reward, too, like: {example}")
    arguments = [Argument("MODEL", "model.path", target)] if is_model else []
    arguments += [*data_arguments(data), *reward_arguments(list(rewards) or None)]
    chosen = list(presets) if len(presets) > 1 else presets[0] if presets else None
    config, base = configured(None if is_model else target, chosen, arguments, overrides=overrides)
    return config, base, "-".join(presets or ["grpo"]) if is_model else target
