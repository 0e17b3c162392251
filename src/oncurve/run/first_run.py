"""The words that every command with a recipe takes: `RECIPE|MODEL --data FILE --reward REWARD --preset NAME`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from oncurve.config import Argument, RunConfig, names_recipe
from oncurve.errors import ConfigError, command, shown, suggest
from oncurve.paths import usable_path
from oncurve.run.arguments import configured, data_arguments, reward_arguments
from oncurve.shipped import PRESETS, RECIPES, SUFFIXES, shipped


def command_config(
    target: str | None,
    overrides: Sequence[str] = (),
    data: str | None = None,
    rewards: Sequence[str] = (),
    presets: Sequence[str] = (),
    of: str = "train",
) -> tuple[RunConfig, Path, str]:
    """The configuration of the words of a command, the folder in which relative paths start, and a name.

    The name is that of the recipe or preset, after which a run's folder is called.

    target    a recipe, or with `data` or `rewards` a model; None: neither
    data      as the argument `data` of `oncurve.train`: a file or another source
    rewards   kinds, paths "file.py:name", reward models
    presets   later ones win; without a recipe and a preset "grpo"
    of        the command, for messages: "data check"

    Raises ConfigError: a word that names nothing, a model without data and rewards, and whatever is wrong with the
    settings.
    """
    is_model = target is not None and _names_model(target)
    if is_model and data is None and not rewards:
        example = command(*of.split(), target, "--data", "train.jsonl", "--reward", "math")
        raise ConfigError(f"{target} is no recipe; to take a model, name data and a reward, too, like: {example}")
    arguments = [Argument("MODEL", "model.path", target)] if is_model else []
    arguments += [*data_arguments(data), *reward_arguments(list(rewards) or None)]
    chosen = list(presets) if len(presets) > 1 else presets[0] if presets else None
    recipe = None if is_model else target
    config, base = configured(recipe, chosen, arguments, overrides=overrides, word="--preset")
    return config, base, recipe or "-".join(presets or ["grpo"])


def _names_model(target: str) -> bool:
    """Whether a word that is no recipe is a model: a folder, or an id of the hub.

    Raises ConfigError: it is neither, nor anything else that exists.
    """
    if names_recipe(target):
        return False
    here = usable_path(target, "RECIPE|MODEL")
    if not target.strip():
        raise ConfigError("RECIPE|MODEL: the name is empty; name a recipe, a preset or a model")
    if "/" in target or here.is_dir():
        return True
    if os.path.lexists(here):
        return False  # a pipe or a device: what reads recipes says so
    entries = sorted(Path().iterdir())
    files = [entry.name for entry in entries if entry.name.endswith(SUFFIXES)]
    models = [entry.name for entry in entries if (entry / "config.json").is_file()]
    presets, recipes = shipped(PRESETS), shipped(RECIPES)
    near = suggest(target, [*models, *files, *presets, *recipes]) or ";"
    raise ConfigError(
        f"there is no recipe, preset or model {shown(target)} here{near} "
        f"the presets are: {', '.join(presets)}; the recipes of the package are: {', '.join(recipes)}; "
        "a model of the hub is written OWNER/NAME"
    )
