"""rlox's YAML or TOML file for `train --config`, as data.

The file's tables are flattened, `hyperparameters: {group_size: 4}` is `hyperparameters.group_size`. rlox itself reads
such files for control tasks only; `algorithm: grpo` has here the settings that its `GRPO` has in Python. What rlox has
no key for, model, prompts and rewards, stands on the command line.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Dialect, Said, Translation, Values, keys_of
from oncurve.compat.recipe import config_of
from oncurve.compat.rlox import REASONS
from oncurve.config import RunConfig, read_table
from oncurve.run import data_arguments, reward_arguments


def algorithm(name: str, _: Values) -> dict[str, Any]:
    """Return the settings of the algorithm. Raises ConfigError: it is another one's."""
    if name.lower() != "grpo":
        raise ConfigError(f'{shown(name)}: {REASONS["PPO"]}; here it is "grpo"')
    return ALGORITHM


def callbacks(names: list[Any], _: Values) -> None:
    """Raise ConfigError: one is not here."""
    for name in names:
        if name not in ("eval", "checkpoint", "progress", "timing"):
            raise ConfigError(f"{shown(name)}: expected eval, checkpoint, progress or timing")


def of_callback(steps: int, values: Values, of: str) -> int | None:
    """Return the steps, where the callback is there."""
    return steps if of in (values["callbacks"] or ()) else None


_FILE = Path(__file__).with_name("keys.toml")
ALGORITHM: dict[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["algorithm"]
"""The preset "rlox", without its numbers, which are keys of their own."""

DIALECT = Dialect("rlox", "1.2", keys_of(_FILE, globals()))
ABOUT = Path(__file__).with_name("about.md").read_text(encoding="utf-8")
"""The text of the page "Coming from another tool" before the table of settings."""


def translated(path: Path) -> Translation | None:
    """Return the settings of a file in rlox's form, or None if it has no `algorithm`, so that it is a recipe.

    Raises ConfigError: it cannot be read, or has a setting that is unknown, refused or wrong.
    """
    tables = read_table(path, path.suffix == ".toml")
    if "algorithm" not in tables:
        return None
    try:
        return DIALECT.translate({name: Said(value, str(path)) for name, value in _flat(tables)})
    except ConfigError as error:
        said = f"; see {path}" if str(path) not in str(error) else ""
        raise ConfigError(f"{error}{said}") from None


def _flat(tables: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tables.items():
        if name in ("hyperparameters", "config") and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield str(name), value


def run_config(
    path: Path, overrides: Sequence[str] = (), data: str | None = None, rewards: Sequence[str] = ()
) -> tuple[RunConfig, Path] | None:
    """Return the configuration of a file in rlox's form, with words like `"model.path=M"`, or None for a recipe.

    `data` and `rewards` are as `oncurve.train` takes them. Raises ConfigError as `translated` does, and for what
    oncurve refuses.
    """
    found = translated(path)
    arguments = data_arguments(data) | reward_arguments(list(rewards) or None)
    return None if found is None else config_of(found, overrides, arguments)
