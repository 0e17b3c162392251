"""The common part of the functions of verl's tables: names of its sections, sums of its values, and paths."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Values

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))


def made(values: Values, name: str) -> Any:
    """Return the settings that another key becomes. Raises ConfigError."""
    return values.keys_of[name].settings(values[name], values)


def is_given(values: Values, *names: str) -> bool:
    """Return whether one of them was given with a value that is not null."""
    return any(values.given(name) and values[name] is not None for name in names)


def either(values: Values, *names: str) -> Any:
    """Return the first of several names' values that was given, else the default of the last."""
    return next((values[name] for name in names if is_given(values, name)), values[names[-1]])


def minibatches(_: Any, values: Values) -> int:
    """Return how many minibatches a step has. Raises ConfigError: they are not whole, which verl refuses too."""
    batch, each = values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]
    if not isinstance(batch, int) or not isinstance(each, int) or batch < 1 or each < 1:
        raise ConfigError(f"expected numbers of prompts above 0, got {shown(each)} of {shown(batch)}")
    if batch % each:
        raise ConfigError(
            f"data.train_batch_size={batch} prompts are not whole minibatches of {each}; give a divisor of {batch}"
        )
    return batch // each


def updates_per_step(values: Values) -> int:
    """Return the optimizer's updates of one step of verl: minibatches times epochs. Raises ConfigError."""
    return minibatches(None, values) * int(values[f"{ACTOR}.ppo_epochs"])


def local(given: Any) -> str:
    """Return a path as it is. Raises ConfigError: a text that names no file of this machine, such as HDFS."""
    if not isinstance(given, str) or not given:
        raise ConfigError(f"expected a path, got {shown(given)}")
    scheme, colon, _ = given.partition("://")
    if colon:
        raise ConfigError(f"{scheme}://: files are read from this machine; copy it here and give its path")
    return given
