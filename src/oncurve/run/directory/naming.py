"""The folder of a run that was given none: `runs/<recipe>-<model>`."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from oncurve.base.paths import usable_path
from oncurve.config import RunConfig

NAMELESS = ("config", "recipe", "model", "checkpoint", "best", "final", "latest", "last")
"""Names of files and folders that say nothing: a recipe is then called by its folder, and a model not at all."""

LONGEST = 80


def run_name(recipe: str | Path, config: RunConfig) -> str:
    """Return `run.name`, or the recipe's or preset's name and the model's: `"gsm8k-qwen2.5-0.5b"`.

    A recipe that is called `config` or `recipe` has the name of its folder. The model is left out where its folder's
    name says nothing, or the recipe's name has it.
    """
    if config.run.name is not None:
        return config.run.name
    of_recipe, of_model = _called(Path(recipe)), Path(config.model.path).name
    model = "" if of_model.lower() in NAMELESS else _plain(of_model)
    name = of_recipe if model in of_recipe else f"{of_recipe}-{model}".strip("-")
    return name[:LONGEST].strip("-.") or "run"


def free_directory(name: str) -> Path:
    """Return the first of `runs/<name>`, `runs/<name>-2` and so on that does not exist."""
    usable_path(Path("runs") / name, "run.name")
    paths = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())


def _called(recipe: Path) -> str:
    """Return the name of a recipe's file, of a run's folder that is taken as a recipe, or of a preset."""
    name = recipe.stem if recipe.suffix in (".toml", ".yaml", ".yml") else recipe.name
    return _plain(recipe.resolve().parent.name if name.lower() in NAMELESS else name)


def _plain(name: str) -> str:
    """Return the name in small letters, with digits, dots and hyphens, as folders are called."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")
